"""The cost model: a trace of a few workgroups in, modelled time on a gfx950 out.

    recorder = Recorder()
    launch(kernel, grid, block, kernarg, memory, workgroups=neighbours(grid), observers=(recorder,))
    prediction = predict(recorder.trace())
    print(prediction.time)                           # modelled 12.3 us [11.0, 14.1]

Knows the emulator's trace format and nothing else of flycc. docs/costmodel.md describes the model.
"""

from flycc.costmodel.device import Floor, predict, timeline
from flycc.costmodel.loops import loop_turns
from flycc.costmodel.machine import MI350, Clock, Machine
from flycc.costmodel.prediction import InstructionCost, Interval, LoopCost, Occupancy, Prediction
from flycc.costmodel.reuse import Reuse, neighbours
from flycc.costmodel.uneven import representative

__all__ = [
    "MI350",
    "Clock",
    "Floor",
    "InstructionCost",
    "Interval",
    "LoopCost",
    "Machine",
    "Occupancy",
    "Prediction",
    "Reuse",
    "loop_turns",
    "neighbours",
    "predict",
    "representative",
    "timeline",
]
