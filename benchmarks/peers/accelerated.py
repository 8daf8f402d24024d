"""pytorch-accelerated's Trainer with its default callbacks. A turn is one epoch of a long run."""

from pytorch_accelerated import Trainer

from models import BATCH_SIZES, check_loss, make_dataset, make_loss_function, make_model, make_optimizer
from turns import serve

ENDLESS = 1_000_000


class TrainerInTurns(Trainer):
    """Times each epoch from its first action to the end of its last step. The work after that (a
    pause of 10 ms for the progress bar, and printing) does not count.
    """

    def __init__(self, turns, dataset, **arguments):
        super().__init__(**arguments)
        self._turns = turns
        self._dataset = dataset

    def train_epoch_start(self):
        self._turns.begin()
        super().train_epoch_start()

    def optimizer_step(self):
        super().optimizer_step()
        self._turns.updated()

    def train_epoch_end(self):
        super().train_epoch_end()
        self._turns.end(lambda: check_loss(self.model, self._dataset))


def train(arguments, turns):
    dataset = make_dataset(arguments.work, arguments.steps)
    model = make_model(arguments.work)
    trainer = TrainerInTurns(turns, dataset, model=model, loss_func=make_loss_function(arguments.work),
                             optimizer=make_optimizer(model.parameters()))
    turns.ready()
    trainer.train(train_dataset=dataset, num_epochs=ENDLESS,
                  per_device_batch_size=BATCH_SIZES[arguments.work],
                  train_dataloader_kwargs={"num_workers": arguments.workers,
                                           "persistent_workers": arguments.workers > 0})


if __name__ == "__main__":
    serve(train)
