-- No claim made the event: all claims are told.
local claim = false
