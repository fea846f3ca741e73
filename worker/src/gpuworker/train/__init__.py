"""Training programs, and callbacks for the Trainer of transformers."""
