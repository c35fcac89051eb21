//! What people see: pictures and traces, all functions of a schedule and a timeline.
