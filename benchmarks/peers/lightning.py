"""Lightning's Trainer, without a logger or checkpoints. A turn is one epoch of a long fit.

Without --log-loss, the step does not log its loss. Lightning then skips work that other Trainers do.
"""

import pytorch_lightning

from models import check_loss, make_dataset, make_loader, make_loss_function, make_model, make_optimizer
from turns import serve


class Module(pytorch_lightning.LightningModule):
    def __init__(self, arguments, turns, model, dataset):
        super().__init__()
        self.model = model
        self._log_loss = arguments.log_loss
        self._loss_function = make_loss_function(arguments.work)
        self._turns = turns
        self._dataset = dataset

    def configure_optimizers(self):
        return make_optimizer(self.model.parameters())

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = self._loss_function(self.model(inputs), targets)
        if self._log_loss:
            self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_start(self):
        self._turns.begin()

    def on_train_epoch_end(self):
        self._turns.end(lambda: check_loss(self.model, self._dataset))


def train(arguments, turns):
    dataset = make_dataset(arguments.work, arguments.steps)
    loader = make_loader(arguments.work, dataset, arguments.workers)
    trainer = pytorch_lightning.Trainer(accelerator="cpu", devices=1, max_epochs=-1, logger=False,
                                        enable_checkpointing=False)
    module = Module(arguments, turns, make_model(arguments.work), dataset)
    turns.ready()
    trainer.fit(module, loader)


if __name__ == "__main__":
    serve(train)
