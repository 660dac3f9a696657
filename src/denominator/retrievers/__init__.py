"""What turns chunks and questions into rankings: tables in columns, exact search, the models that need no network."""
