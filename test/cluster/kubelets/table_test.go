// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
)

// What make e2e has seen, and where its table is.
const (
	snapshot = "../../../docs/e2e.json"
	support  = "../../../docs/support.md"
	begin    = "<!-- made by make e2e SAVE=1 -->\n"
	end      = "<!-- end -->\n"
)

// outcome is how a spec ended.
type outcome struct {
	Suite   string  `json:"suite"`
	State   string  `json:"state"` // passed, failed, skipped (by itself), timedout, ...
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why,omitempty"` // not passed
}

// run is what one proxy has done.
type run struct {
	Date    string             `json:"date"`
	Kernel  string             `json:"kernel"`
	Minutes float64            `json:"minutes"`
	Specs   map[string]outcome `json:"specs"` // by their whole name
}

// add puts a run into the snapshot. Of an earlier run of the proxy, specs that have not run again stay.
func add(kind proxies.Kind, r run) error {
	all, err := read()
	if err != nil {
		return err
	}
	for name, o := range all[kind].Specs {
		if _, again := r.Specs[name]; !again {
			r.Specs[name] = o
		}
	}
	all[kind] = r
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(snapshot, append(text, '\n'), 0o644)
}

func read() (all map[proxies.Kind]run, err error) {
	all = map[proxies.Kind]run{}
	text, err := os.ReadFile(snapshot)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// table is what the snapshot says, in Markdown.
func table(all map[proxies.Kind]run) string {
	if len(all) == 0 {
		return "No run has been saved yet.\n"
	}
	var columns []proxies.Kind
	var out strings.Builder
	head, line := "| specs |", "| --- |"
	for _, kind := range kinds([]string{"slipstream", "kube-proxy"}, []string{"nftables", "iptables"}) {
		if r, ok := all[kind]; ok {
			columns = append(columns, kind)
			name, _, _ := strings.Cut(string(kind), "-"+kind.Mode())
			head += fmt.Sprintf(" %s, %s (%s, Linux %s) |", name, kind.Mode(), r.Date, r.Kernel)
			line += " --- |"
		}
	}
	out.WriteString(head + "\n" + line + "\n")
	counts := map[string]map[proxies.Kind][2]int{} // passed and run, by suite
	failed := map[string][]string{}                // proxies and modes, by spec
	for _, kind := range columns {
		for spec, o := range all[kind].Specs {
			if o.State == "skipped" {
				continue
			}
			if counts[o.Suite] == nil {
				counts[o.Suite] = map[proxies.Kind][2]int{}
			}
			n := counts[o.Suite][kind]
			n[1]++
			if o.State == "passed" {
				n[0]++
			} else {
				failed[spec] = append(failed[spec], string(kind))
			}
			counts[o.Suite][kind] = n
		}
	}
	for _, suite := range slices.Sorted(maps.Keys(counts)) {
		row := "| " + strings.TrimPrefix(suite, "[sig-network] ") + " |"
		for _, kind := range columns {
			if n := counts[suite][kind]; n[1] == 0 {
				row += " not run |"
			} else {
				row += fmt.Sprintf(" %d of %d |", n[0], n[1])
			}
		}
		out.WriteString(row + "\n")
	}
	if len(failed) > 0 {
		out.WriteString("\nNot passed:\n\n")
	}
	for _, spec := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(&out, "- %s: %s\n", spec, strings.Join(failed[spec], ", "))
	}
	return out.String()
}

// TestTable compares the table in docs/support.md with the snapshot, and writes it with -save.
func TestTable(t *testing.T) {
	all, err1 := read()
	text, err2 := os.ReadFile(support)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	old, rest, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table between %q and %q", support, begin, end)
	}
	want := table(all)
	if old == want {
		return
	}
	if !*save {
		t.Fatalf("%s has another table than %s makes:\n%s", support, snapshot, want)
	}
	if err := os.WriteFile(support, []byte(head+begin+want+end+rest), 0o644); err != nil {
		t.Fatal(err)
	}
}
