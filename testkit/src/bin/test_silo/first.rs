//! The test silo, with the first release of the messages that tests mix.

#[path = "main.rs"]
mod desk;
mod lines;
#[path = "program_first.rs"]
mod program;

fn main() -> std::process::ExitCode {
    desk::run()
}
