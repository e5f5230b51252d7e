"""Prints what TensorBoard reads in the folder named: {tag: [[step, value], ...]} as JSON."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})  # all of them
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [[point.step, point.value] for point in events.Scalars(tag)] for tag in tags}))
