"""How a model is trained: configuration, machine, optimizers, schedule, validation, checkpoints and the loop over them.

    config       what a training is asked to do          loop         evaluate, save, stop or make one more update
    precision    where and how numbers are computed      session      what moves while a training goes on
    calibration  which kernels are faster here           trouble      spikes, lost numbers, lost processes
    optimizers   gradients into updates (muon)           validation   when the validation split is scored
    schedules    the rate's factor at a step             checkpoint   what a resume needs (tensorfile)
    dropout      masks by name                           distributed  how weights are held (whole, shards), ranks
    record       what observers receive                  graph_replay an update recorded once and played again

Nothing is imported here, so that reading a configuration does not load torch.
"""
