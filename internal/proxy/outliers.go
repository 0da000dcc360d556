// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

const (
	mostProbes     = 16   // endpoints at once; half of them only suspects and those that are out
	knownPerTenant = 1000 // endpoints that are watched
	probeTimeout   = 500 * time.Millisecond
	perSuspect     = 2                // probes at once: one packet may be lost
	trustFor       = 10 * time.Second // after an answer to a probe, failures do not count for so long; doubled up to lastPause while no client is answered
	firstPause     = time.Second      // between probes of an endpoint that is out, doubled after each
	lastPause      = time.Minute
	mostTries      = 8                // to learn whether an endpoint answers: after 1, 2, 4 to 256 minutes
	mostOut        = 10 * time.Minute // then clients try it again, as a policy may keep only this node from it
)

// announceWithin is the time within which an Event follows, at random: many nodes may find the same at once. A test shortens it.
var announceWithin = 2 * time.Minute

// probesPerTenant is the number of probes at once for a namespace, by whether they are of suspects and endpoints that are out.
var probesPerTenant = map[bool]int{false: 2, true: 4}

// unanswered are the errors of probes that tell of the endpoint. Others tell of this node, for example that it has no port left.
var unanswered = []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, context.DeadlineExceeded, os.ErrDeadlineExceeded}

// outliers are what this node knows of endpoints that clients use, of Services with outlier detection.
type outliers struct {
	tenants map[string]*tenant // by namespace
	probing int
	done    chan func()
}

type tenant struct {
	namespace string
	known     map[desired.Target]*outlier
	probing   int
}

type outlier struct {
	desired.Target
	dns      bool // probes ask it
	frontend desired.FrontendKey
	answers  bool // it has answered a probe, or over UDP without dns, no ICMP error has
	news     bool // it has answered a client since the last probe began, or uses UDP
	tries    int  // probes without an answer before the first answer
	probing  bool
	failing  bool      // clients get no answer
	missed   bool      // nor did a probe since then
	due      time.Time // when failures count, and the next probe is due
	trust    time.Duration
	pause    time.Duration
	out      time.Time // since when it is out; zero if it is not
	back     time.Time // since when it is back
	announce time.Time // zero if that is done
}

// watchHandshakes has endpoints that answer nobody ejected, and those that answer again taken back.
func (p *Proxy) watchHandshakes(ctx context.Context) {
	o, now := &p.outliers, time.Now()
	for _, h := range p.options.Loads.Handshakes() {
		t := o.tenants[h.Namespace]
		if t == nil {
			t = &tenant{namespace: h.Namespace, known: map[desired.Target]*outlier{}}
			o.tenants[h.Namespace] = t
		}
		to, dns := desired.Target{Protocol: h.Frontend.Protocol, Backend: h.Backend}, h.Frontend.Port() == 53 || h.Backend.Port() == 53
		x := t.known[to]
		if x == nil && len(t.known) < knownPerTenant {
			x = &outlier{Target: to, dns: dns, trust: trustFor, pause: firstPause}
			t.known[to] = x
		}
		switch {
		case x == nil:
			continue
		case !h.Failing:
			x.failing, x.news, x.trust = false, true, trustFor
			p.takeBack(t, x, "it answers a client")
		case !x.failing && (now.After(x.due) || !x.answers):
			x.failing, x.missed = true, false
		}
		x.frontend, x.news = h.Frontend, x.news || h.Frontend.Protocol == desired.UDP
	}
	for namespace, t := range o.tenants { // in random order, which shares out the probes
		if len(t.known) == 0 && t.probing == 0 {
			delete(o.tenants, namespace)
		}
		for to, x := range t.known {
			d, service := p.state.DetectionOf(x.frontend, x.Backend)
			switch {
			case d == "" || service.Namespace != t.namespace:
				p.takeBack(t, x, "it is not watched any more")
				delete(t.known, to)
				continue
			case x.failing && x.missed && x.out.IsZero():
				p.takeOut(t, x, d)
			case !x.out.IsZero() && now.Sub(x.out) >= mostOut:
				p.takeBack(t, x, "it is tried again")
				x.due = now
			}
			if !x.announce.IsZero() && now.After(x.announce) && p.options.Events != nil {
				x.announce = time.Time{}
				p.options.Events.OnService(service, "EndpointUnanswered", fmt.Sprintf("endpoint %s/%s does not answer connections of clients and of nodes (%s: %s)", x.Backend, x.Protocol, desired.AnnotationOutliers, d))
			}
			suspect := x.answers && x.failing || !x.out.IsZero()
			needed := suspect || !x.answers && x.news && o.probing < mostProbes/2
			if needed && !x.probing && now.After(x.due) && t.probing < probesPerTenant[suspect] && o.probing < mostProbes {
				p.probe(ctx, t, x)
			}
		}
	}
}

// probe connects to an endpoint in the background. watchHandshakes acts on the result after another look at the clients.
func (p *Proxy) probe(ctx context.Context, t *tenant, x *outlier) {
	count := func(n int) {
		p.outliers.probing += n
		t.probing += n
		x.probing = n > 0
	}
	count(1)
	probes := 1
	if x.failing && x.out.IsZero() && x.Protocol == desired.TCP { // over UDP, one sends twice
		probes = perSuspect
	}
	x.news = false
	p.background.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		answers := make(chan error, probes)
		for range probes {
			go func() { answers <- p.options.Probe(ctx, x.Target, x.dns) }()
		}
		err := <-answers
		for n := 1; n < probes && err != nil; n++ {
			err = <-answers
		}
		p.outliers.done <- func() {
			count(-1)
			p.probed(t, x, err)
		}
	})
}

func (p *Proxy) probed(t *tenant, x *outlier, err error) {
	now := time.Now()
	switch {
	case err == nil:
		if x.failing {
			x.failing, x.due, x.trust = false, now.Add(x.trust), min(2*x.trust, lastPause)
		}
		x.answers = true
		p.takeBack(t, x, "a probe of this node succeeds")
	case !slices.ContainsFunc(unanswered, func(is error) bool { return errors.Is(err, is) }):
		x.due, x.trust, x.news = now.Add(x.trust), min(2*x.trust, lastPause), true // it has not been tried
	case !x.out.IsZero():
		x.due, x.pause = now.Add(x.pause), min(2*x.pause, lastPause)
	case x.answers:
		x.missed = true
	default:
		x.due, x.tries = now.Add(lastPause<<x.tries), min(x.tries+1, mostTries)
	}
}

func (p *Proxy) takeOut(t *tenant, x *outlier, detection string) {
	now := time.Now()
	if now.Sub(x.back) > mostOut {
		x.pause = firstPause
	}
	x.out, x.announce, x.due = now, now.Add(rand.N(announceWithin)), now.Add(x.pause)
	p.metrics.OutlierEjections.WithLabelValues(detection).Inc()
	p.silence(t, x, "An endpoint answers neither clients nor this node", detection)
}

func (p *Proxy) takeBack(t *tenant, x *outlier, why string) {
	if !x.out.IsZero() {
		x.out, x.announce, x.back, x.failing = time.Time{}, time.Time{}, time.Now(), false
		p.silence(t, x, "An endpoint gets connections again", why)
	}
}

func (p *Proxy) silence(t *tenant, x *outlier, what, why string) {
	p.log.Info(what, "endpoint", x.Backend, "protocol", x.Protocol, "namespace", t.namespace, "reason", why)
	p.state.Silent(t.namespace, x.Target, !x.out.IsZero())
	p.pending = true
}

// forgetOutliers takes all endpoints back.
func (p *Proxy) forgetOutliers(why string) {
	for _, t := range p.outliers.tenants {
		for _, x := range t.known {
			p.takeBack(t, x, why)
		}
		clear(t.known)
	}
}
