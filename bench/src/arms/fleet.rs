//! The servers of a measurement: started when they are first needed, all of them ended at its end.

use super::ArmError;
use super::server::{Launch, OwnServer};

/// Servers by the number of their arm.
#[derive(Debug, Default)]
pub struct Fleet {
    servers: Vec<(usize, OwnServer)>,
    /// Whether only one of them runs at a time.
    alone: bool,
}

impl Fleet {
    /// Servers that stay once they are started; `alone` lets each give way to the next, where memory
    /// does not hold them all.
    pub fn new(alone: bool) -> Self {
        Self { servers: Vec::new(), alone }
    }

    /// Whether only one of them runs at a time.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The server of an arm, and whether it has just been started. `loading` hears the arm's name and
    /// the share of its weights that is loaded.
    pub async fn get(
        &mut self,
        number: usize,
        launch: &Launch,
        mut loading: impl FnMut(&str, f64),
    ) -> Result<(&mut OwnServer, bool), ArmError> {
        let known = self.servers.iter().position(|(of, _)| *of == number);
        let (index, fresh) = match known {
            Some(index) => (index, false),
            None => {
                if self.alone {
                    self.stop_all().await?;
                }
                // It is kept before it is waited for: whoever drops the wait finds it here to stop it.
                self.servers.push((number, OwnServer::spawn(launch.clone())?));
                let index = self.servers.len() - 1;
                self.servers[index].1.ready(|share| loading(&launch.arm, share)).await?;
                (index, true)
            }
        };
        Ok((&mut self.servers[index].1, fresh))
    }

    /// Stops all of them; the first that does not end well is the error, after all have ended.
    pub async fn stop_all(&mut self) -> Result<(), ArmError> {
        let stops = self.servers.drain(..).map(|(_, server)| server.stop());
        let ends = futures_util::future::join_all(stops).await;
        ends.into_iter().collect()
    }
}
