// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// FuzzDecode checks that nothing makes the decoder panic, that what it accepts
// is valid, and that it accepts that again, unchanged, once written as JSON.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		service("a", 1) + "---\n" + sliceYAML + "---\n" + nodeYAML + "---\n" + serviceCIDRYAML,
		jsonService("a", 1) + jsonService("b", 2),
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.96.0.1, sessionAffinity: ClientIP, externalIPs: [192.0.2.1], ports: [{name: a, port: 80, nodePort: 30000}, {name: b, port: 81, targetPort: b}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}",
		"{apiVersion: v1, kind: Service, metadata: {name: a, creationTimestamp: \"2026-01-02T03:04:05.678Z\"}, spec: {clusterIPs: [\"fd00::1\", 10.96.0.1], ports: [{port: 80}]}}",
		"apiVersion: v1\nkind: List\nitems:\n" + indent(service("a", 1)) + indent(sliceYAML),
		"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {capacity: {cpu: 1500m}}\n",
		"a: &a [*b]\n--- &b !!map {<<: *a}\n...\n%TAG\n? x\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Decode("f.yaml", data)
		for _, e := range c.Errors {
			if s := e.Error(); strings.ContainsAny(s, "\n\r") || !strings.HasPrefix(s, "f.yaml: ") {
				t.Errorf("error %q", s)
			}
		}
		seen := map[string]bool{}
		for _, o := range c.Objects {
			if seen[source.Name(o.Object)] {
				t.Errorf("%s twice", source.Name(o.Object))
			}
			seen[source.Name(o.Object)] = true
			if faults := Validate(o.Object); len(faults) > 0 {
				t.Errorf("%s is accepted but not valid: %v", source.Name(o.Object), faults)
			}
			written, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatalf("%s: %v", source.Name(o.Object), err)
			}
			again := Decode("f.yaml", written)
			if len(again.Errors) > 0 || len(again.Objects) != 1 {
				t.Fatalf("%s does not survive being written: %v\n%s", source.Name(o.Object), again.Errors, written)
			}
			twice, err := json.Marshal(again.Objects[0].Object)
			if err != nil || !bytes.Equal(written, twice) {
				t.Errorf("%s changes when written: %v\n%s\n%s", source.Name(o.Object), err, written, twice)
			}
		}
	})
}
