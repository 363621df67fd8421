-- The last fence of each name, and the claim that has or had it. Only Palisade writes it; it outlives the lock by 10 minutes.
CREATE TABLE IF NOT EXISTS {fence} (
  name VARCHAR(512) CHARACTER SET {charset} COLLATE {collation} NOT NULL PRIMARY KEY,
  fence BIGINT NOT NULL,
  claim VARCHAR(32) NOT NULL,
  revoked TINYINT NOT NULL DEFAULT 0,
  -- When a sweep last saw the lock, in microseconds since 1970.
  used BIGINT NOT NULL DEFAULT 0
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
