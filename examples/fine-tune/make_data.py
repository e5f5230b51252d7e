#!/usr/bin/env python3
"""Texts and conversations to train on, made of a dictionary: the same files on every machine.

    make_data.py OUT [--dictionary FILE] [--made-up]

FILE is the text of Debian's dict-gcide (apt install dict-gcide), the GNU version of Webster's dictionary of 1913;
--made-up makes up a few hundred entries instead, for a quick try. OUT gets

    text.jsonl        {"text": "Abditory, noun. A place for hiding or preserving articles of value."}
    text_held.jsonl   the same of words that no other file but chat_held.jsonl has
    chat.jsonl        {"messages": [{"role": "user", "content": "What does abditory mean?"}, ...]}
    chat_held.jsonl
    questions.jsonl   the first questions of chat_held.jsonl, without their answers
"""
import argparse
import gzip
import hashlib
import json
import os
import re

GCIDE = "/usr/share/dictd/gcide.dict.dz"
PARTS = {"n": "noun", "a": "adjective", "adv": "adverb", "v. t": "verb", "v. i": "verb", "v": "verb"}
HEAD = re.compile(r"^(?P<word>[A-Z][a-z-]{2,19}) \\")
BODY = re.compile(r"^,? ?(?P<part>n|a|adv|v\. t|v\. i|v)\. (?P<text>.*)$")
LONGEST = 160  # characters of a definition
HELD_OUT = 40  # one word of so many
ASKED = 12  # questions

QUESTIONS = ("What does {} mean?", "Define {}.", "What is the meaning of {}?", "Explain the word {}.",
             "{}?", "Tell me what {} means.")
FIRST = ("I am reading an old book.", "Help me with a word, please.", "I have a question about a word.")
WELCOME = "Which word do you want to know about?"


def entries_of(lines):
    """Entries: a line that begins at the margin, and those below it."""
    entry = []
    for line in lines:
        if entry and line[:1] not in (" ", "\n"):
            yield entry
            entry = []
        entry.append(line.rstrip("\n"))
    if entry:
        yield entry


def without_brackets(text, opening, closing):
    kept, depth = [], 0
    for character in text:
        depth += character == opening
        if depth == 0:
            kept.append(character)
        depth -= character == closing and depth > 0
    return "".join(kept)


def definition(entry):
    """(word, part of speech, first definition), or None where the entry is of another form."""
    head = HEAD.match(entry[0])
    if not head:
        return None
    text = " ".join(line.strip() for line in entry)
    text = re.sub(r"\\[^\\]*\\", "", text[head.end("word"):].strip())
    text = without_brackets(text, "[", "]")
    text = re.sub(r"^\s*\([^)]*\),?", ",", text)  # how it is pronounced
    body = BODY.match(re.sub(r"\s+", " ", text).replace(" ,", ",").strip())
    if not body:
        return None
    text = re.sub(r"^1\. ", "", body["text"])
    text = re.sub(r"^(\([A-Z][^)]*\) )+", "", text)  # (Bot.)
    text = re.split(r" --| 2\. |; as,|: as,|, as,|; -- ", text)[0].replace("{", "").replace("}", "")
    text = re.split(r"(?<=[a-z]{3})[.;:]", text)[0].strip(" ,")
    if not 12 <= len(text) <= LONGEST or not re.fullmatch(r"[A-Z][ -~]*[a-z)]", text) or text.startswith("See "):
        return None
    return head["word"].lower(), PARTS[body["part"]], text + "."


def made_up():
    """Entries of a language whose words say what they mean."""
    stems = [a + b for a in ("bl", "gr", "st", "fl", "tr", "m", "k", "d", "sh", "pl") for b in
             ("ack", "een", "one", "ain", "ist", "olt", "amp", "ump")]
    for stem in stems:
        yield stem, "adjective", f"Having the colour of a {stem}."
        yield stem + "ness", "noun", f"The quality or state of being {stem}."
        yield stem + "ly", "adverb", f"In a {stem} manner."
        yield stem + "er", "noun", f"One who makes things {stem}."
        yield "un" + stem, "adjective", f"Not {stem}."


def number(word, salt):
    return int.from_bytes(hashlib.sha256(f"{salt} {word}".encode()).digest()[:4], "big")


def conversation(word, text):
    question = QUESTIONS[number(word, "question") % len(QUESTIONS)].format(word)
    question = question[0].upper() + question[1:]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    if number(word, "turns") % 4 == 0:  # a turn before it
        first = FIRST[number(word, "first") % len(FIRST)]
        messages[:0] = [{"role": "user", "content": first}, {"role": "assistant", "content": WELCOME}]
    return {"messages": messages}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dictionary", default=GCIDE)
    parser.add_argument("--made-up", action="store_true")
    options = parser.parse_args()
    if options.made_up:
        found = made_up()
    else:
        opener = gzip.open if options.dictionary.endswith((".dz", ".gz")) else open
        with opener(options.dictionary, "rt", encoding="utf-8", errors="replace") as lines:
            found = [each for each in map(definition, entries_of(lines)) if each]
    os.makedirs(options.out, exist_ok=True)
    files = {name: open(os.path.join(options.out, name + ".jsonl"), "w", encoding="utf-8")
             for name in ("text", "text_held", "chat", "chat_held", "questions")}
    seen = set()
    asked = 0
    for word, part, text in found:
        if word in seen:
            continue
        seen.add(word)
        held = "_held" if number(word, "held out") % HELD_OUT == 0 else ""
        print(json.dumps({"text": f"{word.capitalize()}, {part}. {text}"}), file=files["text" + held])
        talk = conversation(word, text)
        print(json.dumps(talk), file=files["chat" + held])
        if held and asked < ASKED:
            print(json.dumps({"messages": talk["messages"][:-1]}), file=files["questions"])
            asked += 1
    for name, file in files.items():
        file.close()
    print(f"{len(seen)} words in {options.out}")


if __name__ == "__main__":
    main()
