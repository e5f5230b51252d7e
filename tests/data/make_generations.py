#!/usr/bin/env python3
"""Makes generations.json: what transformers generates greedily from the models in models/, and how it filters scores.

    python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0 safetensors
    v/bin/python tests/data/make_generations.py

Each prompt alone, in fp32 on one thread, with the key/value cache; some models with other rotary settings than their own.
Tied models with random weights say the last token again for ever: those get a repetition penalty.
A prompt whose best and second best token are close at some step is drawn anew: another order of sums must not matter.
"""
import json
import os

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.generation import (LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                                     TopKLogitsWarper, TopPLogitsWarper)

HERE = os.path.dirname(os.path.abspath(__file__))
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
# model, keys of its config.json that differ, lengths of prompts, new tokens
CASES = [
    ("llama-tiny", {}, [1, 7, 20], 24),
    ("llama-tied", {}, [3, 12], 24),
    ("llama3-rope", {}, [5, 90], 40),  # over the original length of 64
    ("llama-bf16-sharded", {}, [4, 11], 24),
    ("mistral-tiny", {}, [2, 9], 24),
    ("mistral-window", {}, [1, 4, 5, 23], 40),  # windows of 5 keys
    ("qwen2-tiny", {}, [6, 13], 24),
    ("qwen2-window", {}, [3, 17], 40),
    ("qwen3-tiny", {}, [5, 14], 24),
    ("gemma-tiny", {}, [2, 10], 24),
    ("gpt2-tiny", {}, [1, 40], 24),  # 64 positions, used to the last
    ("llama-tiny", {"max_position_embeddings": 16, "rope_scaling": DYNAMIC}, [10, 16, 30], 24),
    ("llama-tiny", {"max_position_embeddings": 64, "rope_scaling": YARN}, [12, 30], 24),
    ("llama-tiny", {"max_position_embeddings": 64, "rope_scaling": LINEAR}, [12, 30], 24),
]
PENALTIES = {"llama-tied": 2.0, "qwen2-tiny": 1.3, "qwen3-tiny": 2.0, "gemma-tiny": 4.0, "gpt2-tiny": 2.0}
MARGIN = 2e-3


def load(name, keys):
    path = os.path.join(HERE, "models", name)
    with open(os.path.join(path, "config.json")) as file:
        settings = json.load(file)
    settings.update(keys)
    settings = AutoConfig.for_model(settings["model_type"], **{k: v for k, v in settings.items() if k != "model_type"})
    model = AutoModelForCausalLM.from_pretrained(path, config=settings, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def generate(model, prompt, count, penalty):
    """The tokens, and the least margin between the best and the second best."""
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        max_new_tokens=count, repetition_penalty=penalty, eos_token_id=None, pad_token_id=0, use_cache=True,
        output_scores=True, return_dict_in_generate=True)
    top = torch.stack(out.scores)[:, 0].topk(2).values
    return out.sequences[0, len(prompt):].tolist(), float((top[:, 0] - top[:, 1]).min())


def greedy():
    cases = []
    for number, (name, keys, lengths, count) in enumerate(CASES):
        generator = torch.Generator().manual_seed(100 + number)
        prompts, penalty = [], PENALTIES.get(name, 1.0)
        for length in lengths:
            margin = 0
            while margin < MARGIN:
                model = load(name, keys)  # anew: a dynamic rotary embedding remembers lengths
                prompt = torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist()
                tokens, margin = generate(model, prompt, count, penalty)
            prompts.append({"prompt": prompt, "tokens": tokens})
        print(name, keys.get("rope_scaling", {}).get("rope_type", ""), [len(set(p["tokens"])) for p in prompts])
        cases.append({"model": name, "config": keys, "repetition_penalty": penalty, "prompts": prompts})
    return cases


TEXTS = ["Once upon a time", " two  spaces, and 12 words", "Zwölf größere Äpfel: 日本"]
CHATS = [[{"role": "user", "content": "Who is there?"}],
         [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
          {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "A word?"}]]


def texts():
    """What llama-tiny writes with each tokenizer of 512 tokens: the text after the prompt's."""
    cases = []
    for name in ("gpt2-512", "llama2-512", "llama3-512", "qwen2-512"):
        tokenizer = AutoTokenizer.from_pretrained(os.path.join(HERE, "tokenizers", name))
        for given in TEXTS + (CHATS if tokenizer.chat_template else []):
            chat = not isinstance(given, str)
            prompt = (tokenizer.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
                      if chat else tokenizer(given)["input_ids"])
            tokens, margin = generate(load("llama-tiny", {}), prompt, 20, 1.5)
            assert margin > 1e-4, (name, given, margin)
            before = 0 if chat else len(tokenizer.decode(prompt, skip_special_tokens=True))
            whole = tokenizer.decode(tokens if chat else prompt + tokens, skip_special_tokens=True)
            cases.append({"tokenizer": name, "messages" if chat else "prompt": given, "text": whole[before:]})
            print(name, repr(whole[before:]))
    return cases


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.6},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.5},
    {"repetition_penalty": 1.7, "temperature": 1.2, "top_k": 20, "top_p": 0.95},
]


def filtered():
    """Scores, tokens before, settings, and the probabilities that a token is drawn by."""
    generator = torch.Generator().manual_seed(7)
    cases = []
    for settings in SETTINGS:
        scores = 3 * torch.randn(40, generator=generator)
        before = torch.randint(0, 40, (9,), generator=generator)
        steps = LogitsProcessorList()
        if "repetition_penalty" in settings:
            steps.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
        steps.append(TemperatureLogitsWarper(settings.get("temperature", 1.0)))
        if "top_k" in settings:
            steps.append(TopKLogitsWarper(settings["top_k"]))
        if "top_p" in settings:
            steps.append(TopPLogitsWarper(settings["top_p"]))
        out = torch.softmax(steps(before[None], scores[None].clone())[0], -1)
        cases.append({"scores": scores.tolist(), "before": before.tolist(), "settings": settings,
                      "probabilities": out.tolist()})
    return cases


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        answers = {"greedy": greedy(), "texts": texts(), "filtered": filtered()}
    with open(os.path.join(HERE, "generations.json"), "w") as file:
        json.dump(answers, file, separators=(",", ":"))
        file.write("\n")
