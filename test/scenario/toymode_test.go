// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestToyConformance runs the tests that all dataplanes pass.
func TestToyConformance(t *testing.T) {
	requireToy(t, "conformance")
	dataplanetest.Conformance(t, desired.Config{NoRanges: true, NoLimits: true}, 1, 3_000, func(t *testing.T) func() dataplanetest.Backend {
		ns, err := lab.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		return func() dataplanetest.Backend {
			return &toy{config: dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}}
		}
	})
}

// TestToy runs every story in the toy's mode.
func TestToy(t *testing.T) {
	requireToy(t, "sctp")
	Run(t, "toy", newToy, onlyHere)
}

// TestToySpread makes sure that backends share the load.
func TestToySpread(t *testing.T) {
	requireToy(t, "spread")
	RunSpread(t, newToy)
}

func requireToy(t *testing.T, what string) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary)
	if why := onlyHere(what); why != "" {
		t.Skip(why)
	}
}

// toyRegistration is what a commit that adds the toy as a mode changes in files that exist: text, and
// the text in its place. docs/adding-a-mode.md has the same files.
var toyRegistration = map[string][2]string{
	"internal/config/config.go": {`{NFTables, IPTables, IPVS}`, `{NFTables, IPTables, IPVS, "toy"}`},
	"cmd/slipstream/modes.go": {"var modes = map[string]mode{\n", `var modes = map[string]mode{
	"toy": {remove: new(toy).Cleanup, open: func(_ context.Context, c *config.Config) (instance, error) {
		return instance{programmer: &toy{config: backendConfig(c)}}, nil
	}},
`},
	"deploy/helm/slipstream/values.schema.json": {`"iptables", "ipvs"]`, `"iptables", "ipvs", "toy"]`},
	"docs/configuration.md":                     {"\n| `ipvs` | supported", "\n| `toy` | for tests |\n| `ipvs` | supported"},
}

// buildWithToy builds the command slipstream with the toy as a mode.
func buildWithToy(t *testing.T) (path string) {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	must(t, err)
	replace := map[string]string{}
	put := func(file, text string) {
		replace[filepath.Join(root, file)] = filepath.Join(dir, filepath.Base(file))
		must(t, os.WriteFile(replace[filepath.Join(root, file)], []byte(text), 0o600))
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/adding-a-mode.md"))
	must(t, err)
	for file, change := range toyRegistration {
		if !strings.Contains(string(page), "\n| `"+file+"` |") {
			t.Errorf("docs/adding-a-mode.md does not say that a mode changes %s", file)
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		must(t, err)
		if strings.Count(string(text), change[0]) != 1 {
			t.Fatalf("%s has not exactly one %q", file, change[0])
		}
		put(file, strings.Replace(string(text), change[0], change[1], 1))
	}
	for _, name := range []string{"toy", "toyrules"} {
		text, err := os.ReadFile(name + "_test.go")
		must(t, err)
		put("cmd/slipstream/"+name+".go", strings.Replace(string(text), "package scenario", "package main", 1))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	path = filepath.Join(dir, "slipstream")
	build := exec.Command("go", "build", "-buildvcs=false", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "./cmd/slipstream")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// toyManifests are a Service and its endpoint, as in dataplanetest.
const toyManifests = `apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-0, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8000}]
endpoints: [{addresses: [10.244.1.3]}]
`

// TestToyCommand runs the command in the toy's mode, which needs no more than toyRegistration and new
// files: it takes over from another mode, and is read, repaired, replaced and removed like the others.
func TestToyCommand(t *testing.T) {
	requireToy(t, "command")
	slipstream := buildWithToy(t)
	s, manifests, dir := dataplanetest.NewStreet(t, 1), t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(toyManifests), 0o600))
	start := func(mode string) *lab.Program {
		p, err := s.Node.StartSlipstream(t.Context(), dir, slipstream, manifests, "--proxy-mode", mode)
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(dir, "n1.log"))
			t.Fatalf("%v\n%s", err, log)
		}
		t.Cleanup(func() { p.Kill() })
		return p
	}
	command := func(args ...string) string {
		out, err := s.Node.Run(t.Context(), args[0], args[1:]...)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	ask := func(args ...string) string {
		return command(append([]string{slipstream}, append(args, "--socket", filepath.Join(dir, "n1.sock"))...)...)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not so after a minute: %s", what)
			}
		}
	}
	reached := func() bool {
		_, err := s.Client.Connect(lab.TCP, netip.MustParseAddrPort("10.96.0.1:80"), lab.Timeout(time.Second))
		return err == nil
	}
	tables := func() string { return strings.Join(strings.Fields(command("nft", "list", "tables")), " ") }
	onlyToy := func() bool {
		return strings.Contains(tables(), "table ip toy") && !strings.Contains(tables(), "slipstream")
	}

	stop := func(p *lab.Program) {
		must(t, p.Signal(syscall.SIGTERM))
		must(t, p.Wait())
	}
	stop(start("nftables"))
	p := start("toy")
	eventually("only the toy's tables are left", onlyToy)
	eventually("the Service is served", reached)
	for _, words := range []string{"chain cluster-6-10.96.0.1_80", "at random", "10.244.1.3:8000"} {
		if said := ask("explain", "web"); !strings.Contains(said, words) {
			t.Errorf("explain does not say %q: %s", words, said)
		}
	}
	command(slipstream, "verify", "--manifests", manifests, "--hostname-override", "n1", "--proxy-mode", "toy")
	command("nft", "flush", "chain", "ip", "toy", "services")
	eventually("the damage is repaired", reached)
	stop(p)
	command(slipstream, "cleanup")
	if left := tables(); strings.Contains(left, "toy") {
		t.Errorf("left by cleanup: %s", left)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
