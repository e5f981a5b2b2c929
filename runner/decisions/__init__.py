"""Reading the decision log and what became of requests: `impyard decisions`. Nothing here judges or writes."""
