//! The binary from outside: runs that end, are killed, stopped, resumed, damaged; what they leave; what they
//! refuse.

mod again;
mod by_time;
mod collection;
mod coordinates;
mod corpus;
mod damage;
mod disk;
mod doctor;
mod ema;
mod export;
mod failures;
mod hostile;
mod kills;
mod ramp;
mod results;
mod resume;
mod sample;
mod sets;
mod signals;
mod text;
mod until;
mod verified;
mod watch;
mod wrong;
