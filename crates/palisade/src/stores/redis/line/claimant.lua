local claim = ARGV[1]
