//! The settings that only a restart changes, and the configuration that a running server has in
//! force after it has read its file again.

use crate::{Config, Error, Result, check, origin::Fault};

/// A section or key that only a restart changes.
struct RestartOnly {
    /// The key, as messages name it.
    name: &'static str,
    /// True if two configurations say the same.
    is_same: fn(&Config, &Config) -> bool,
    /// Sets the second configuration's value to the first one's.
    keep: fn(&Config, &mut Config),
}

macro_rules! restart_only {
    ($($name:literal: $($field:ident).+,)*) => {
        [$(RestartOnly {
            name: $name,
            is_same: |one, other| one.$($field).+ == other.$($field).+,
            keep: |from, to| to.$($field).+.clone_from(&from.$($field).+),
        },)*]
    };
}

const RESTART_ONLY: [RestartOnly; 11] = restart_only! {
    "server.listen": server.listen,
    "server.data": server.data,
    "server.tls": server.tls,
    "server.audit": server.audit,
    "server.hosts": server.hosts,
    "server.behind-proxy": server.behind_proxy,
    "server.limits.queue": server.limits.queue,
    "server.limits.connections": server.limits.connections,
    "server.limits.requests-per-second": server.limits.requests_per_second,
    "server.telemetry": server.telemetry,
    "devices": devices,
};

impl Config {
    /// The changed sections that need a restart; a running service can take over the rest.
    pub fn changed_at_restart_only(&self, new: &Self) -> Vec<&'static str> {
        let differs = RESTART_ONLY.iter().filter(|setting| !(setting.is_same)(self, new));
        differs.map(|setting| setting.name).collect()
    }

    /// The configuration in force after this one, which is in force, has been replaced by a new
    /// one without a restart: settings that only a restart changes keep their values. Every rule is
    /// checked on that result, since a rule that joins such a setting with another one has to hold
    /// for the values in force, whatever the new file says.
    ///
    /// # Errors
    /// [`Error::Wrong`] if a rule is broken by what would be in force, if no token would be asked
    /// for any more, or if the file is gone that this configuration was read from.
    pub fn reloaded(&self, new: &Self, shipped: &[&str]) -> Result<Self> {
        if self.origin.is_of_file() && !new.origin.is_of_file() {
            return Err(self.error_at("", "the file is gone: put it back, or restart without one"));
        }
        if self.server.has_tokens() && !new.server.has_tokens() {
            let detail = "names no token any more (token-file, [[server.tokens]]), and everybody could do everything: \
                          name one, or restart: a running server goes on asking for a token";
            return Err(new.error_at("server", detail));
        }
        let mut result = new.clone();
        RESTART_ONLY.iter().for_each(|setting| (setting.keep)(self, &mut result));
        let checked = check::find_fault(&result).and_then(|()| check::find_policy_fault(&result, shipped));
        match checked {
            Ok(()) => Ok(result),
            Err(fault) => Err(self.fault_in_force(new, fault)),
        }
    }

    /// The error of a fault of what would be in force. If the new file differs in settings that
    /// only a restart changes, they may be the cause, and are named.
    fn fault_in_force(&self, new: &Self, Fault { at, detail }: Fault) -> Error {
        let waiting = self.changed_at_restart_only(new);
        let cause = match waiting.is_empty() {
            true => String::new(),
            false => {
                format!(" ({} changed, which takes a restart: until then the value before counts)", waiting.join(", "))
            }
        };
        new.error_at(&at, format!("{detail}{cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{SHIPPED, parsed};

    const EXPOSED: &str = "[server]\nlisten = \"0.0.0.0:7590\"\nbehind-proxy = true\ntoken-file = \"token\"\n";

    fn reloaded(was: &str, now: &str) -> Result<Config> {
        parsed(was).unwrap().reloaded(&parsed(now).unwrap(), &SHIPPED)
    }

    #[test]
    fn tokens_are_asked_for_until_a_restart_whatever_the_file_says() {
        let token = "[[server.tokens]]\nname = \"ci\"\nrole = \"read\"\nfile = \"t\"\n";
        for was in [EXPOSED, "[server]\ntoken-file = \"token\"\n", token] {
            for now in ["", "# cut off\n", "[server]\n", "[server]\nlisten = \"127.0.0.1:7590\"\nroots = [\"/srv\"]\n"]
            {
                let message = reloaded(was, now).unwrap_err().to_string();
                assert!(message.contains("names no token any more") && message.contains("restart"), "{message}");
            }
            let another = reloaded(was, &format!("[server]\n{token}")).unwrap();
            assert!(another.server.token_file.is_none() && another.server.tokens.len() == 1);
        }
        let first = reloaded("", token).unwrap();
        assert!(first.server.has_tokens() && first.reloaded(&Config::default(), &SHIPPED).is_err());
    }

    #[test]
    fn rules_hold_for_the_values_in_force() {
        const ROUTE: &str = "[[routes]]\npolicy = \"fixed\"\ndevice = \"second\"\n[[routes]]\npolicy = \"fixed\"\n";
        const SECOND: &str = "[devices.second]\ndevice = \"cpu\"\n";
        let new = format!("{SECOND}{ROUTE}");
        let message = reloaded(SECOND.replace("second", "first").as_str(), &new).unwrap_err().to_string();
        assert!(
            message.starts_with("config.toml:5: unknown device 'second'")
                && message.contains("devices changed, which takes a restart"),
            "{message}"
        );
        reloaded(SECOND, &new).unwrap();
        // Keys that a restart alone changes are as they were, and the rest as the file says.
        let kept = reloaded(
            &format!(
                "{EXPOSED}audit = \"a\"\nhosts = [\"a.example\"]\n[server.limits]\nqueue = 3\ndeadline = \"2h\"\n"
            ),
            "[server]\ntoken-file = \"other\"\n[server.limits]\nqueue = 4\ndeadline = \"3h\"\n",
        );
        let kept = kept.unwrap().server;
        assert_eq!((kept.listen.to_string().as_str(), kept.behind_proxy, kept.limits.queue), ("0.0.0.0:7590", true, 3));
        assert!(kept.audit.is_some() && kept.hosts == ["a.example"]);
        assert!(kept.token_file.unwrap().ends_with("other") && kept.limits.deadline.as_secs() == 3 * 3600);
    }

    #[test]
    fn a_file_that_is_gone_is_no_configuration_of_defaults() {
        let message = parsed("[server]\n").unwrap().reloaded(&Config::default(), &SHIPPED).unwrap_err().to_string();
        assert!(message.starts_with("config.toml: the file is gone"), "{message}");
        Config::default().reloaded(&Config::default(), &SHIPPED).unwrap();
    }
}
