//! ComfyUI's two forms of a graph: the one that its interface opens (litegraph's, version 0.4), and
//! the one that its server runs.

use serde_json::{Map, Value, json};

/// Pixels between the nodes of two columns, and of two rows.
const COLUMN: usize = 380;
const ROW: usize = 220;

/// The size that nodes are drawn with; the interface grows them to what they hold.
const SIZE: [usize; 2] = [320, 120];

/// The size of a note.
const NOTE: [usize; 2] = [700, 180];

/// An output of a node.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    node: usize,
    slot: usize,
}

/// A value that a node's own fields hold.
#[derive(Clone, Debug)]
pub enum Field {
    /// A value that both forms hold.
    Plain(&'static str, Value),
    /// A prompt's text, of which the interface would expand parts.
    Text(&'static str, String),
    /// A value of the interface alone.
    Shown(Value),
}

/// A node: its class, the outputs of others that it takes, its own fields, and its outputs.
#[derive(Clone, Debug)]
struct Node {
    class: &'static str,
    inputs: Vec<(&'static str, &'static str, Link)>,
    fields: Vec<Field>,
    outputs: &'static [(&'static str, &'static str)],
    /// The longest way to it from a node without inputs.
    column: usize,
}

/// A graph that is being made.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Words beside the nodes, which the interface alone shows.
    notes: Vec<String>,
}

impl Graph {
    /// Adds a node. `inputs` are names with types and the outputs that they take, `outputs` names
    /// with types. Returns its first output.
    pub fn add(
        &mut self,
        class: &'static str,
        inputs: Vec<(&'static str, &'static str, Link)>,
        fields: Vec<Field>,
        outputs: &'static [(&'static str, &'static str)],
    ) -> Link {
        let column = inputs.iter().map(|(_, _, link)| self.nodes[link.node].column + 1).max().unwrap_or(0);
        self.nodes.push(Node { class, inputs, fields, outputs, column });
        Link { node: self.nodes.len() - 1, slot: 0 }
    }

    /// Puts words beside the nodes.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// The form that the server runs.
    pub fn prompt(&self) -> Value {
        let mut nodes = Map::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let mut inputs = Map::new();
            for field in &node.fields {
                match field {
                    Field::Plain(name, value) => inputs.insert((*name).into(), value.clone()),
                    Field::Text(name, text) => inputs.insert((*name).into(), json!(text)),
                    Field::Shown(_) => None,
                };
            }
            for (name, _, link) in &node.inputs {
                inputs.insert((*name).into(), json!([(link.node + 1).to_string(), link.slot]));
            }
            nodes.insert((index + 1).to_string(), json!({ "class_type": node.class, "inputs": inputs }));
        }
        Value::Object(nodes)
    }

    /// The form that the interface opens.
    pub fn workflow(&self) -> Value {
        let mut links = Vec::new();
        let mut taken = vec![Vec::new(); self.nodes.len()];
        let mut sockets = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let mut own = Vec::new();
            for (slot, (name, kind, link)) in node.inputs.iter().enumerate() {
                let id = links.len() + 1;
                links.push(json!([id, link.node + 1, link.slot, index + 1, slot, kind]));
                taken[link.node].push((link.slot, id));
                own.push(json!({ "name": name, "type": kind, "link": id }));
            }
            sockets.push(own);
        }
        let mut rows: Vec<usize> = Vec::new();
        let mut nodes = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            rows.resize(rows.len().max(node.column + 1), 0);
            let row = rows[node.column];
            rows[node.column] += 1;
            let outputs: Vec<Value> = node
                .outputs
                .iter()
                .enumerate()
                .map(|(slot, (name, kind))| {
                    let ids: Vec<usize> =
                        taken[index].iter().filter(|(of, _)| *of == slot).map(|(_, id)| *id).collect();
                    json!({ "name": name, "type": kind, "links": ids, "slot_index": slot })
                })
                .collect();
            let widgets: Vec<Value> = node
                .fields
                .iter()
                .map(|field| match field {
                    Field::Plain(_, value) | Field::Shown(value) => value.clone(),
                    Field::Text(_, text) => json!(escape(text)),
                })
                .collect();
            nodes.push(json!({
                "id": index + 1,
                "type": node.class,
                "pos": [node.column * COLUMN, row * ROW],
                "size": SIZE,
                "flags": {},
                "order": index,
                "mode": 0,
                "inputs": sockets[index],
                "outputs": outputs,
                "properties": { "Node name for S&R": node.class, "cnr_id": "comfy-core" },
                "widgets_values": widgets,
            }));
        }
        for (index, text) in self.notes.iter().enumerate() {
            let id = self.nodes.len() + index + 1;
            nodes.push(json!({
                "id": id,
                "type": "Note",
                // Above the nodes.
                "pos": [index * COLUMN, -(ROW as i64)],
                "size": NOTE,
                "flags": {},
                "order": id - 1,
                "mode": 0,
                "inputs": [],
                "outputs": [],
                "properties": {},
                "widgets_values": [text],
            }));
        }
        json!({
            "last_node_id": nodes.len(),
            "last_link_id": links.len(),
            "nodes": nodes,
            "links": links,
            "groups": [],
            "config": {},
            "extra": {},
            "version": 0.4,
        })
    }
}

impl Link {
    /// Another output of the same node.
    pub fn output(self, slot: usize) -> Self {
        Self { slot, ..self }
    }
}

/// A prompt as the interface keeps it: it chooses one of `{a|b}` at random and cuts comments,
/// unless they are escaped. A choice of one, as in `/{/}`, parts what would begin a comment.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut backslashes = 0;
    while let Some(character) = characters.next() {
        match character {
            '{' | '}' | '|' if backslashes % 2 == 0 => escaped.extend(['\\', character]),
            '{' | '}' | '|' => escaped.extend(['\\', '{', '\\', character, '}']),
            '/' if matches!(characters.peek(), Some('/' | '*')) => {
                escaped.extend(['/', '{']);
                escaped.extend(characters.next());
                escaped.push('}');
            }
            _ => escaped.push(character),
        }
        backslashes = if character == '\\' { backslashes + 1 } else { 0 };
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_escaped_as_the_interface_reads_them() {
        for (text, kept) in [
            ("a red circle", "a red circle"),
            ("{a|b}", "\\{a\\|b\\}"),
            ("http://x y", "http:/{/}x y"),
            ("///", "/{/}/"),
            ("/* no */", "/{*} no */"),
            ("a \\{", "a \\\\{\\{}"),
            ("\\(a:1.2\\)", "\\(a:1.2\\)"),
        ] {
            assert_eq!(escape(text), kept, "{text}");
        }
    }

    #[test]
    fn both_forms_hold_the_same_nodes() {
        let mut graph = Graph::default();
        let plain = |name, value: Value| Field::Plain(name, value);
        let model = graph.add("UNETLoader", vec![], vec![plain("unet_name", json!("a"))], &[("MODEL", "MODEL")]);
        let clip = graph.add("CLIPLoader", vec![], vec![], &[("CLIP", "CLIP")]);
        let text = Field::Text("text", "{a}".into());
        let text =
            graph.add("CLIPTextEncode", vec![("clip", "CLIP", clip)], vec![text], &[("CONDITIONING", "CONDITIONING")]);
        let fields = vec![plain("seed", json!(u64::MAX)), Field::Shown(json!("fixed"))];
        let inputs =
            vec![("model", "MODEL", model), ("positive", "CONDITIONING", text), ("negative", "CONDITIONING", text)];
        graph.add("KSampler", inputs, fields, &[("LATENT", "LATENT")]);
        let prompt = graph.prompt();
        assert_eq!(
            prompt["3"],
            json!({ "class_type": "CLIPTextEncode", "inputs": { "text": "{a}", "clip": ["2", 0] } })
        );
        assert_eq!(
            prompt["4"]["inputs"],
            json!({ "seed": u64::MAX, "model": ["1", 0], "positive": ["3", 0], "negative": ["3", 0] })
        );
        let workflow = graph.workflow();
        assert_eq!(workflow["links"][2], json!([3, 3, 0, 4, 1, "CONDITIONING"]));
        assert_eq!(workflow["nodes"][2]["outputs"][0]["links"], json!([3, 4]));
        assert_eq!(workflow["nodes"][2]["widgets_values"], json!(["\\{a\\}"]));
        assert_eq!(workflow["nodes"][3]["widgets_values"], json!([u64::MAX, "fixed"]));
        assert_eq!(workflow["nodes"][3]["pos"][0], 2 * COLUMN);
        // A note is no node of the server's.
        graph.note("not alike".into());
        let note = &graph.workflow()["nodes"][4];
        assert_eq!((&note["type"], &note["widgets_values"]), (&json!("Note"), &json!(["not alike"])));
        assert_eq!(graph.prompt(), prompt);
    }
}
