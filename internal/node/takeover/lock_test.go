// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"golang.org/x/sys/unix"
)

// TestLock does not change iptables-legacy while another program holds its lock.
func TestLock(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy)
	x := &iptables{newNode(t), "iptables-legacy"}
	x.restore("*nat\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n")
	lock, err := os.OpenFile(xtables.LockFile, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.takeOver()
	}()
	select {
	case <-done:
		t.Error("it has not waited for the lock")
	case <-time.After(300 * time.Millisecond):
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	if left := x.save(); strings.Contains(left, "KUBE-") {
		t.Errorf("left:\n%s", left)
	}
}
