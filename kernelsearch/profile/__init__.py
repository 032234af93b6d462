"""What is known of a kernel besides its time: machine code, occupancy, roofline, counters."""
