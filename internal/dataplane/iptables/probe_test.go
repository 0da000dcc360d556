// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestProbe finds nothing missing on the kernels that tests run on, and leaves nothing
// behind, beside rules of ours or alone.
func TestProbe(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		web(s, 1, 1, 2, 3)
		for _, before := range []string{"nothing", "rules"} {
			missing, err := k.Probe(t.Context())
			if err != nil || len(missing) > 0 {
				t.Errorf("with %s there: missing %v, error %v", before, missing, err)
			}
			k.hasNoProbe(v)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			k.has(s)
		}
	})
}

// TestProbeWasInterrupted probes after a proxy was killed during a probe: the set and the
// rules of that probe are still there.
func TestProbeWasInterrupted(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		leave := func() {
			t.Helper()
			script := "*nat\n:" + probeName + " - [0:0]\n-A " + probeName + " -m set --match-set " + probeName + " dst\nCOMMIT\n"
			err := k.sets.Create(probeName, "hash:ip", false)
			if err == nil {
				err = v.restore(t.Context(), k.config.NetNS, desired.IPv4, []byte(script))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		leave()
		if missing, err := k.Probe(t.Context()); err != nil || len(missing) > 0 {
			t.Errorf("missing %v, error %v", missing, err)
		}
		k.hasNoProbe(v)
		leave()
		if err := k.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		k.hasNoProbe(v)
	})
}

func (k *kernel) hasNoProbe(v Variant) {
	k.t.Helper()
	for _, command := range []string{string("iptables-" + v + "-save"), string("ip6tables-" + v + "-save"), "ipset list -n"} {
		if out := k.run(command); strings.Contains(out, probeName) {
			k.t.Errorf("%s:\n%s", command, out)
		}
	}
}

// TestProbeStopped ends the context while the rules of a probe are in the kernel: the command
// hangs after it has restored them.
func TestProbeStopped(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		dir := t.TempDir()
		begun, restore := filepath.Join(dir, "begun"), string("iptables-"+v+"-restore")
		path, err := exec.LookPath(restore)
		if err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\ninput=$(cat)\necho \"$input\" | " + path + " \"$@\"\n: >" + begun + "\nexec sleep 600\n"
		if err := os.WriteFile(filepath.Join(dir, restore), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for ctx.Err() == nil {
				if _, err := os.Stat(begun); err == nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		if missing, err := k.Probe(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("missing %v, error %v", missing, err)
		}
		k.hasNoProbe(v)
	})
}

// TestProbeLocked probes while another program has the lock of iptables-legacy, which says
// nothing about the node.
func TestProbeLocked(t *testing.T) {
	requireVariant(t, Legacy)
	k := newKernel(t, Legacy)
	k.run("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT")
	defer func(s string) { lockSeconds = s }(lockSeconds)
	lockSeconds = "1"
	holdLock(t)
	if missing, err := k.Probe(t.Context()); err == nil || len(missing) > 0 || len(k.tables) != 2 {
		t.Errorf("missing %v, error %v, %d tables", missing, err, len(k.tables))
	}
	if v, err := Detect(t.Context(), k.ns.FD()); err == nil {
		t.Errorf("variant %s", v)
	}
}

// TestProbeNames makes the kernel refuse a target in a table where it is not allowed.
func TestProbeNames(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		allowed := extensions
		defer func() { extensions = allowed }()
		extensions = append([]extension{}, allowed...)
		for i, e := range allowed {
			if e.name != "target MASQUERADE" {
				continue
			}
			extensions[i].table = tableFilter
			missing, err := k.Probe(t.Context())
			if err != nil || len(missing) != 2 || missing[0].Feature != e.name || missing[1].Family != desired.IPv6 || len(k.tables) > 0 {
				t.Errorf("missing %v, error %v, %d tables", missing, err, len(k.tables))
			}
			t.Log(missing)
		}
		k.hasNoProbe(v)
	})
}

// TestProbeLeavesOut runs with the commands of one family alone. What is programmed and
// read back is of the other.
func TestProbeLeavesOut(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, without := range families {
			t.Run(without.String(), func(t *testing.T) {
				onlyCommands(t, v, 1-without)
				k := newKernel(t, v)
				missing, err := k.Probe(t.Context())
				if err != nil || len(missing) != 1 || missing[0].Family != without || missing[0].Feature != "command "+v.command(without, "-restore") {
					t.Fatalf("missing %v, error %v", missing, err)
				}
				t.Log(missing[0])
				c := desired.Config{}
				c.Without[without] = true
				s := desired.New(c)
				web(s, 1, 1, 2, 3)
				dataplanetest.Reconcile(t, k.Dataplane, s)
				k.has(s)
				if err := k.Check(t.Context()); err != nil {
					t.Error(err)
				}
				var names []string
				err = k.ns.Do(func() (err error) {
					names, err = [...]*xtables.Family{xtables.IPv4, xtables.IPv6}[without].Tables()
					return err
				})
				if err != nil || len(names) > 0 {
					t.Errorf("tables of x_tables of the other family: %v, error %v", names, err)
				}
			})
		}
	})
}

// onlyCommands has the test find the commands of one family alone.
func onlyCommands(t *testing.T, v Variant, f desired.Family) {
	dir := t.TempDir()
	for _, end := range []string{"", "-save", "-restore"} {
		path, err := exec.LookPath(v.command(f, end))
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, v.command(f, end)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// TestExtensions compares the extensions that a probe tries with those in rules.
func TestExtensions(t *testing.T) {
	all := map[string]bool{}
	for _, e := range extensions {
		all[e.name] = true
	}
	requireVariant(t, NFT)
	k := newKernel(t, NFT)
	s := desired.New(desired.Config{DetectLocal: desired.DetectLocal{Mode: desired.ByBridgeInterface, Interface: "cni0"}})
	web(s, 1, 1, 2, 3)
	s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}, Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, SessionAffinity: corev1.ServiceAffinityClientIP,
		Ports: []corev1.ServicePort{{Port: 80}},
	}})
	dataplanetest.Reconcile(t, k.Dataplane, s)
	used := map[string]bool{}
	builtIn := map[string]bool{"target ACCEPT": true, "target DROP": true, "target RETURN": true, "match tcp": true, "match udp": true, "match sctp": true}
	for _, m := range regexp.MustCompile(`-(m|j) ([a-z]+|[A-Z]+)\b[^-]`).FindAllStringSubmatch(k.run("iptables-nft-save; ip6tables-nft-save"), -1) {
		name := map[string]string{"m": "match ", "j": "target "}[m[1]] + m[2]
		if builtIn[name] {
			continue
		}
		used[name] = true
		if !all[name] {
			t.Errorf("the probe does not try %s", name)
		}
	}
	for name := range all {
		if !used[name] {
			t.Errorf("no rule has %s", name)
		}
	}
}

var _ dataplane.Prober = (*Dataplane)(nil)
