// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestTurnsAreShown has more Service ports with round robin than the kernel has counters. No more are
// said to be chosen so.
func TestTurnsAreShown(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	s := newSite(t)
	socket := socketPath(t)
	var service, slice strings.Builder
	service.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: many, namespace: default, annotations: {slipstream.io/scheduler: rr}}\nspec:\n  clusterIP: 10.96.0.50\n  ports:\n")
	slice.WriteString("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: many-1, namespace: default, labels: {kubernetes.io/service-name: many}}\n" +
		"addressType: IPv4\nendpoints: [{addresses: [10.244.1.10]}, {addresses: [10.244.1.11]}]\nports:\n")
	for i := range nftables.MaxCounters + 16 {
		fmt.Fprintf(&service, "  - {name: p%d, port: %d}\n", i, 1000+i)
		fmt.Fprintf(&slice, "- {name: p%d, port: 8080, protocol: TCP}\n", i)
	}
	s.save("many.yaml", service.String()+slice.String())
	s.run("--status-socket", socket)
	shown := ""
	s.until("the Service is there", func() bool {
		shown, _ = s.see("services", "--socket", socket, "default/many")
		return strings.Contains(shown, "chosen by")
	})
	if n := strings.Count(shown, "chosen by rr"); n == 0 || n > nftables.MaxCounters {
		t.Errorf("%d ports are chosen by rr, of which %d can be", n, nftables.MaxCounters)
	}
}
