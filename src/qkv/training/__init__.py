"""How a model is trained: configuration, machine, optimizers, schedule, validation, checkpoints and the loop over them.

    config       what a training is asked to do          loop        evaluate, save, stop or make one more update
    precision    where and how numbers are computed      validation  when the validation split is scored
    optimizers   gradients into updates (muon)           pace        wall time into a horizon
    schedules    the rate's factor at a step             checkpoint  what a resume needs (tensorfile)
    dropout      masks by name                           weights     how they are held (shards)
    record       what observers receive                  interrupt   Ctrl-C and SIGTERM

Nothing is imported here, so that reading a configuration does not load torch.
"""
