// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestVerify damages what is attached and what maps have, one after the other.
func TestVerify(t *testing.T) {
	w := newWorld(t)
	w.fill(2, nil)
	w.reconcile()
	verify := func(full *desired.Change) string {
		t.Helper()
		n, faults, err := Verify(w.options, full)
		w.check(err)
		if full != nil && n == 0 && !strings.Contains(strings.Join(faults, ""), "is not at cgroup") {
			t.Error("no frontends were compared")
		}
		return strings.Join(faults, "\n")
	}
	full := func() *desired.Change { return &w.state.Full().Change }
	if found := verify(full()); found != "" {
		t.Fatalf("without damage: %s", found)
	}
	delFirst := func(m *ebpf.Map, key any) {
		t.Helper()
		w.check(m.NextKey(nil, key))
		w.check(m.Delete(key))
	}
	for want, damage := range map[string]func(){
		"the BPF program connect4 is not at cgroup": func() { w.check(os.Remove(w.dir + "/connect4")) },
		"instead of \"[":                      func() { delFirst(w.objects.Endpoints, new(programSlot)) },
		"is \"left to the rules\" instead of": func() { delFirst(w.objects.Pools, new(uint32)) },
		"frontend ":                           func() { delFirst(w.objects.Frontends, new(programAddress)) },
		"map of sockets: node address ":       func() { delFirst(w.objects.NodeAddresses, new(programAddress)) },
		"does not belong there":               func() { w.check(w.objects.Frontends.Put(&programAddress{Port: 7}, uint32(0))) },
		"cni-00000000-0000-0000-0000-000000000001 is \"\" instead of \"is a pod's\"": func() {
			cookie, err := cookieOf(w.client.FD())
			w.check(errors.Join(err, w.objects.Namespaces.Delete(cookie)))
		},
		"network namespace of the node is \"is a pod's\"": func() { w.check(w.objects.Namespaces.Put(w.namespaces[namespace{}].cookie, podsNamespace)) },
		"with the cookie 4711, \"is a pod's\", does not":  func() { w.check(w.objects.Namespaces.Put(uint64(4711), podsNamespace)) },
		"no proxy has renewed their lease":                func() { w.check(w.objects.Lease.Put(uint32(0), uint64(time.Second))) },
	} {
		damage()
		if found := verify(full()); !strings.Contains(found, want) {
			t.Errorf("Verify finds no %q:\n%s", want, found)
		}
		w.reconcile()
		if found := verify(full()); found != "" {
			t.Errorf("after the repair of %q: %s", want, found)
		}
	}
	if found := verify(nil); !strings.Contains(found, "though socketLoadBalancing is off") {
		t.Errorf("switched off: %q", found)
	}
	w.check(errors.Join(w.Close(), Remove(w.node.FD())))
	if found := verify(nil); found != "" {
		t.Errorf("removed: %q", found)
	}
	if found := verify(full()); strings.Count(found, "is not at cgroup") != len(attachTypes) {
		t.Errorf("nothing is attached: %q", found)
	}
}
