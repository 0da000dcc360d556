// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// target reads where a frontend leads, from a pool's first chain on.
func (r *reader) target(k desired.FrontendKey, to string) (t dataplane.Target) {
	rules, there := r.chains[to]
	if !there {
		r.fault("frontend %s leads to chain %s, which does not exist", k, to)
	}
	looked := map[desired.Backend]bool{}
	choose := rules[:0:0]
	for _, line := range rules {
		switch seconds := line["--seconds"]; {
		case seconds != "":
			n, _ := strconv.ParseUint(seconds, 10, 32)
			t.Affinity = uint32(n)
			b, _ := r.endpoint(line)
			looked[b] = true
		case line.has("--remove"):
		case line["-j"] == "RETURN" && strings.HasPrefix(line["--comment"], `"affinity `):
			fmt.Sscanf(line["--comment"], `"affinity %d`, &t.Affinity)
		default:
			choose = append(choose, line)
		}
	}
	weights := map[desired.Backend]float64{}
	if left := r.choose(choose, 1, weights); len(choose) > 0 && left > 1e-6 {
		r.fault("frontend %s chooses nothing with a probability of %g", k, left)
	}
	for b, w := range weights {
		t.Backends = append(t.Backends, b)
		if math.Abs(w*float64(len(weights))-1) > 1e-3 {
			r.fault("frontend %s chooses %s with a probability of %g, one of %d", k, b, w, len(weights))
		}
		if t.Affinity > 0 && !looked[b] {
			r.fault("frontend %s does not know clients of %s", k, b)
		}
	}
	if t.Affinity > 0 && len(looked) != len(weights) {
		r.fault("frontend %s has %d endpoints and knows clients of %d", k, len(weights), len(looked))
	}
	slices.SortFunc(t.Backends, desired.Backend.Compare)
	if len(t.Backends) == 0 {
		reject, drop := r.sets[setReject][frontendMember(k)], r.sets[setDrop][frontendMember(k)]
		if reject == drop {
			r.fault("frontend %s has no backends: refused %t, dropped %t", k, reject, drop)
		}
		if drop {
			t.IfEmpty = desired.Drop
		}
	}
	return t
}

// choose adds to weights the probability with which rules choose each backend, given the
// probability with which they are reached, and returns that of choosing none.
func (r *reader) choose(rules []rule, of float64, weights map[desired.Backend]float64) float64 {
	for _, line := range rules {
		p := 1.0
		if text := line["--probability"]; text != "" {
			p, _ = strconv.ParseFloat(text, 64)
		}
		if b, ok := r.endpoint(line); ok {
			weights[b] += of * p
			of -= of * p
			continue
		}
		next, there := r.chains[line["-g"]]
		if !there {
			r.fault("a rule for an endpoint that leads nowhere: %v", line)
			continue
		}
		missed := r.choose(next, of*p, weights)
		of -= of*p - missed
	}
	return of
}

// endpoint is the endpoint to which a rule sends packets, directly or through the chain of
// an endpoint with session affinity.
func (r *reader) endpoint(line rule) (b desired.Backend, ok bool) {
	if to := line["-g"]; strings.HasPrefix(to, stickyPrefix) && len(r.chains[to]) == 1 {
		line = r.chains[to][0]
	}
	ap, err := netip.ParseAddrPort(line["--to-destination"])
	return desired.NewBackend(ap), err == nil
}
