// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"runtime"
	"testing"

	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestUnknownPolicies checks that nothing is offloaded while it is not known whether there are IPsec policies,
// as when they change during each reading.
func TestUnknownPolicies(t *testing.T) {
	route, err := links.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_XFRM)
	if err != nil {
		t.Skip("NOT RUN: the kernel has no IPsec: ", err)
	}
	defer route.Close()
	e := &Engine{route: route}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends without its capabilities
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			t.Error(err)
		}
		if _, err := route.XfrmPolicyList(links.FAMILY_ALL); err == nil {
			t.Error("the policies can be read")
		}
		_ = e.watchIPsec()
	}()
	if <-done; !e.ipsec {
		t.Error("connections are offloaded")
	}
}
