// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxListDepth bounds lists within lists. Each level reads its items once more.
const maxListDepth = 4

// readList reads the items of a v1 List or a list of a known kind. kubectl get
// writes such lists. The list itself is checked as strictly as an object: an
// item under a misspelt or a second "items" would otherwise be lost unnoticed.
func (r *reader) readList(data []byte, item, name, kind string, depth int) {
	if depth == maxListDepth {
		r.fail(item, name, []Fault{{"items", fmt.Sprintf("lists may be nested %d deep", maxListDepth)}})
		return
	}
	// The whole has been parsed before, so that errors mean wrong types only.
	decoder := json.NewDecoder(bytes.NewReader(data))
	if _, err := decoder.Token(); err != nil { // the opening brace
		r.fail(item, name, decodeFaults(err))
		return
	}
	var items []json.RawMessage
	seen := map[string]bool{}
	for decoder.More() {
		field, err := decoder.Token()
		if err != nil {
			r.fail(item, name, decodeFaults(err))
			return
		}
		f := fmt.Sprint(field)
		if seen[f] {
			r.fail(item, name, []Fault{{f, "duplicate field"}})
			return
		}
		seen[f] = true
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			r.fail(item, name, decodeFaults(err))
			return
		}
		switch f {
		case "apiVersion", "kind", "metadata":
		case "items":
			if err := json.Unmarshal(value, &items); err != nil {
				r.fail(item, name, []Fault{{"items", "must be a list"}})
				return
			}
		default:
			r.fail(item, name, []Fault{{f, "unknown field"}})
			return
		}
	}

	outer := lists[kind]
	prefix := "items"
	if item != "" {
		prefix = item + ".items"
	}
	for i, raw := range items {
		at := fmt.Sprintf("%s[%d]", prefix, i)
		if outer == "" {
			r.read(raw, at, nil, depth+1)
			continue
		}
		gvk := known[outer].WithKind(outer)
		r.read(raw, at, &gvk, depth+1)
	}
}
