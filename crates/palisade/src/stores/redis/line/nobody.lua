-- The event is nobody's: everybody is told.
local claim = false
