"""SIGTERM: all ranks save after the same step and exit with 75, which asks for another start.

Trainer(…, callbacks=[…, Durable(), Stop()]): this one comes last, because it ends the process.
"""

from transformers import TrainerCallback

from gpuworker.train.stop_request import StopRequest


class Stop(TrainerCallback):
    def __init__(self) -> None:
        self.request, self.stopping = StopRequest(), False

    def on_train_begin(self, args, state, control, **_) -> None:
        if args.save_only_model:
            raise ValueError("save_only_model: a run cannot go on from a model alone; set it off")
        self.request.install()

    def on_step_end(self, args, state, control, **_) -> None:
        self.stopping = self.stopping or self.request.agreed()
        if self.stopping and state.epoch % 1:
            control.should_save = True
            control.should_evaluate = False  # the grace period is for saving

    def on_epoch_end(self, args, state, control, **_) -> None:
        # After an epoch's last step its evaluation comes first: no later start would make it.
        control.should_save = control.should_save or self.stopping

    def on_save(self, args, state, control, **_) -> None:
        if self.stopping and state.global_step < state.max_steps:
            self.request.exit_saved(state.global_step, args.output_dir)
