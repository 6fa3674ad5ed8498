"""Train SetFit and print the chances of test texts; run by the Python of another environment.

Reads a JSON object from the standard input: model (a folder), texts, codes (of classes, from 0),
test. `pip install setfit==1.2` makes that environment.
"""

import contextlib
import json
import sys
import tempfile

STEPS = 100


def main() -> None:
    """Train for 100 steps of contrastive learning, then SetFit's own head."""
    task = json.load(sys.stdin)
    with (
        contextlib.redirect_stdout(sys.stderr),  # progress and logs
        tempfile.TemporaryDirectory() as scratch,
    ):
        import torch
        from datasets import Dataset
        from setfit import SetFitModel, Trainer, TrainingArguments

        torch.manual_seed(0)
        model = SetFitModel.from_pretrained(task["model"], device="cpu")
        model.model_body.max_seq_length = 128
        rows = Dataset.from_dict({"text": task["texts"], "label": task["codes"]})
        settings = TrainingArguments(
            output_dir=scratch,
            batch_size=16,
            max_steps=STEPS,
            seed=0,
            report_to="none",
            save_strategy="no",
        )
        Trainer(model=model, args=settings, train_dataset=rows).train()
        chances = model.predict_proba(task["test"], as_numpy=True)
    print(json.dumps(chances.tolist()))


if __name__ == "__main__":
    main()
