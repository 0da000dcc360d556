// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// objects are the existing ones, in the order of their last change.
type objects []source.Object

// set adds an object or replaces its former version.
func (all *objects) set(o source.Object) {
	all.remove(o)
	*all = append(*all, o)
}

// remove removes an object and reports whether it existed.
func (all *objects) remove(o source.Object) bool {
	before := len(*all)
	*all = slices.DeleteFunc(*all, func(p source.Object) bool { return source.Name(p) == source.Name(o) })
	return len(*all) < before
}

// addTo adds all objects to a state, the last one first, to vary their order.
func (all objects) addTo(s *desired.State) {
	for _, o := range slices.Backward(all) {
		proxy.ApplyEvent(s, source.Event{Type: source.Set, Object: o})
	}
}

func (s *story) apply(t *testing.T, d *datadriven.TestData) string {
	content := manifest.Decode(d.Pos, []byte(d.Input))
	var out strings.Builder
	for _, err := range content.Errors {
		fmt.Fprintln(&out, "refused:", strings.TrimPrefix(err.Error(), d.Pos+": "))
	}
	for _, kind := range content.Ignored {
		d.Fatalf(t, "%s: not a kind that is read", kind)
	}
	for _, o := range content.Objects {
		s.objects.set(o.Object)
		s.send(source.Event{Type: source.Set, Object: o.Object})
	}
	return out.String() + s.program(t, d)
}

func (s *story) delete(t *testing.T, d *datadriven.TestData) string {
	for _, line := range lines(d.Input) {
		kind, name, _ := strings.Cut(line, " ")
		var o source.Object
		switch kind {
		case "Service":
			o = &corev1.Service{}
		case "EndpointSlice":
			o = &discoveryv1.EndpointSlice{}
		case "Node":
			o = &corev1.Node{}
		case "ServiceCIDR":
			o = &networkingv1.ServiceCIDR{}
		default:
			d.Fatalf(t, "cannot delete %q", line)
		}
		if namespace, rest, ok := strings.Cut(name, "/"); ok {
			o.SetNamespace(namespace)
			name = rest
		}
		o.SetName(name)
		if !s.objects.remove(o) {
			d.Fatalf(t, "%s does not exist", line)
		}
		s.send(source.Event{Type: source.Delete, Object: o})
	}
	return s.program(t, d)
}

// send passes an event to every node.
func (s *story) send(e source.Event) {
	for _, n := range s.nodes {
		proxy.ApplyEvent(n.state, e)
	}
}
