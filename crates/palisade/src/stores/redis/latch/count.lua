-- Replies how often a latch must still be counted down.
return tonumber(redis.call('GET', KEYS[1]) or '0')
