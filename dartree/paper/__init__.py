"""The paper's evaluation: models x temperatures x data sets x methods, in resumable runs."""
