//! A grain in twenty lines: one silo in this process, nothing to set up.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use siloring::prelude::*;

/// A chat room. One activation in the whole cluster, wherever it lives.
#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room {
    members: Vec<String>,
}

#[grain_methods]
impl Room {
    /// Adds a member and says how many there are.
    async fn join(&mut self, name: String) -> u64 {
        self.members.push(name);
        self.members.len() as u64
    }
}

fn main() -> Result<(), StartError> {
    Silo::local().host::<Room>().run(async |silo| {
        let lobby = silo.grain::<Room>("lobby");
        println!("first: {:?}", lobby.join("ada".into()).await);
        println!("second: {:?}", lobby.join("grace".into()).await);
    })
}
