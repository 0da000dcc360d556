// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/proxy"
	"github.com/slipstream-proxy/slipstream/source"
	"github.com/slipstream-proxy/slipstream/source/manifest"
)

// Mode makes the backend of a node; nil tells stories purely.
type Mode func(backend.Config) (backend.Backend, error)

// Dir is where the stories are, seen from a package two folders deep.
const Dir = "../../testdata/scenarios"

// RunAll runs every story as a subtest.
func RunAll(t *testing.T, mode Mode) {
	files, err := filepath.Glob(filepath.Join(Dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories in %s (%v)", Dir, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) { run(t, file, mode) })
	}
}

// story is one story being told.
type story struct {
	mode  Mode
	nodes []*node
	world *world // nil when told purely
}

// node is a node's proxy, without the loop around it.
type node struct {
	name   string
	state  *desired.State
	config backend.Config
	kernel backend.Backend // nil when told purely
}

func run(t *testing.T, file string, mode Mode) {
	s := &story{mode: mode}
	defer s.close(t)
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "require":
			if mode != nil {
				require(t, d)
			}
			return "ok\n"
		case "lab":
			return s.lab(t, d)
		case "serve":
			return s.serve(t, d)
		case "apply":
			return s.apply(t, d)
		case "delete":
			return s.delete(t, d)
		case "state":
			all := backend.ContentOf(s.node(t, d).state.Full()).Lines()
			if len(all) == 0 {
				return "nothing\n"
			}
			return strings.Join(all, "\n") + "\n"
		case "connect":
			if s.world == nil {
				return d.Expected
			}
			return s.world.connect(t, d)
		case "restart":
			return s.restart(t, d)
		}
		d.Fatalf(t, "no such directive: %s", d.Cmd)
		return ""
	})
}

// node is the one that a directive names, or the first.
func (s *story) node(t *testing.T, d *datadriven.TestData) *node {
	var name string
	if d.HasArg("node") {
		d.ScanArgs(t, "node", &name)
	}
	for _, n := range s.nodes {
		if cmp.Or(name, n.name) == n.name {
			return n
		}
	}
	d.Fatalf(t, "there is no node %q; a story starts with lab", name)
	return nil
}

func (s *story) apply(t *testing.T, d *datadriven.TestData) string {
	content := manifest.Decode(d.Pos, []byte(d.Input))
	var out strings.Builder
	for _, err := range content.Errors {
		fmt.Fprintln(&out, "refused:", strings.TrimPrefix(err.Error(), d.Pos+": "))
	}
	var objects []source.Object
	for _, o := range content.Objects {
		objects = append(objects, o.Object)
	}
	s.eachNode(func(n *node) {
		for _, o := range objects {
			proxy.Tell(n.state, source.Event{Type: source.Set, Object: o})
		}
	})
	return out.String() + s.program(t, d)
}

func (s *story) delete(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		kind, name, _ := strings.Cut(line, " ")
		namespace, name, _ := strings.Cut(name, "/")
		s.eachNode(func(n *node) {
			switch kind {
			case "Service":
				n.state.DeleteService(namespace, name)
			case "EndpointSlice":
				n.state.DeleteEndpointSlice(namespace, name)
			default:
				d.Fatalf(t, "cannot delete %q", line)
			}
		})
	}
	return s.program(t, d)
}

func (s *story) eachNode(do func(*node)) {
	for _, n := range s.nodes {
		do(n)
	}
}

// program has every node's backend take the change, compares what the kernel
// then has, and returns the change of the directive's node.
func (s *story) program(t *testing.T, d *datadriven.TestData) (out string) {
	shown := s.node(t, d)
	s.eachNode(func(n *node) {
		change := n.state.Change()
		if n == shown {
			out = describeChange(change) + "\n"
		}
		if n.kernel == nil {
			return
		}
		if _, err := n.kernel.Apply(change); err != nil {
			d.Fatalf(t, "node %s: %v", n.name, err)
		}
		n.compare(t, d)
	})
	return out
}

// compare fails the test unless the kernel has what the state asks for.
func (n *node) compare(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	diff, err := backend.Compare(n.kernel.(backend.Reader), backend.ContentOf(n.state.Full()))
	if err != nil {
		d.Fatalf(t, "node %s: %v", n.name, err)
	}
	if diff != "" {
		d.Fatalf(t, "node %s: the kernel differs:\n%s", n.name, diff)
	}
	if err := n.kernel.Check(); err != nil {
		d.Fatalf(t, "node %s: %v", n.name, err)
	}
}

// restart ends every node's proxy and starts it again on what the kernel has.
func (s *story) restart(t *testing.T, d *datadriven.TestData) string {
	s.eachNode(func(n *node) {
		if n.kernel == nil {
			return
		}
		if err := n.kernel.Close(); err != nil {
			d.Fatalf(t, "node %s: %v", n.name, err)
		}
		s.start(t, d, n)
		n.compare(t, d)
	})
	return "ok\n"
}

// start makes a node's backend and programs all that its state has.
func (s *story) start(t *testing.T, d *datadriven.TestData, n *node) {
	var err error
	if n.kernel, err = s.mode(n.config); err != nil {
		d.Fatalf(t, "node %s: %v", n.name, err)
	}
	if _, err := n.kernel.Reconcile(n.state.Full()); err != nil {
		d.Fatalf(t, "node %s: %v", n.name, err)
	}
}

func (s *story) close(t *testing.T) {
	s.eachNode(func(n *node) {
		if n.kernel == nil {
			return
		}
		if err := n.kernel.Cleanup(); err != nil {
			t.Errorf("node %s: cleanup: %v", n.name, err)
		}
		if got, err := n.kernel.(backend.Reader).Read(); err != nil || len(got.Lines()) > 0 {
			t.Errorf("node %s: left by cleanup: %v %v", n.name, got.Lines(), err)
		}
		if err := n.kernel.Close(); err != nil {
			t.Errorf("node %s: %v", n.name, err)
		}
	})
	if s.world != nil {
		if err := s.world.lab.Close(); err != nil {
			t.Errorf("lab: %v", err)
		}
	}
}

// lines are the lines of a directive's input that are not empty.
func lines(input string) (all []string) {
	for line := range strings.Lines(input) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}
