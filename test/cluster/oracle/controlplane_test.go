// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestControlPlane loads random clusters into the API server, one after the other, and reads
// them back.
func TestControlPlane(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	dir := t.TempDir()
	c, err := upstream.StartControlPlane(t.Context(), upstream.ControlPlaneOptions{
		Dir: dir, ServiceCIDRs: ServiceCIDRs[:], Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(30) {
		want := RandomCluster(seed)
		if err := want.Write(t.Context(), c.Client); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		got, err := ReadCluster(t.Context(), c.Client)
		if err != nil {
			t.Fatal(err)
		}
		const own = 1 // Service "kubernetes"
		if len(got.Services) != len(want.Services)+own || len(got.Slices) != len(want.Slices) || len(got.Nodes) != len(want.Nodes) {
			t.Errorf("seed %d: wrote %d Services, %d slices, %d Nodes; read %d, %d, %d", seed,
				len(want.Services), len(want.Slices), len(want.Nodes), len(got.Services), len(got.Slices), len(got.Nodes))
		}
		if len(got.ServiceCIDRs) == 0 {
			t.Errorf("seed %d: no ServiceCIDR", seed)
		}
		for _, svc := range want.Services {
			stored := got.Named(svc.Namespace, svc.Name)
			if stored == nil || strings.Join(stored.Spec.ClusterIPs, " ") != strings.Join(svc.Spec.ClusterIPs, " ") {
				t.Errorf("seed %d: Service %s/%s: wrote ClusterIPs %v, read %v", seed, svc.Namespace, svc.Name, svc.Spec.ClusterIPs, stored)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
