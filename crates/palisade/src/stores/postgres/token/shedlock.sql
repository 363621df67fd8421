CREATE TABLE IF NOT EXISTS {table} (
  name varchar(64) NOT NULL PRIMARY KEY,
  lock_until timestamp NOT NULL,
  locked_at timestamp NOT NULL,
  locked_by varchar(255) NOT NULL
);
