// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"
)

// update is a change of the manifests, for the summary.
type update struct {
	name string
	took []time.Duration // to program the kernel, as each slipstream says
	seen []time.Duration // from the file's rename to what clients see of it
}

// addTo adds a node's time to the last update, or begins one if its name is new.
func addTo(all []update, name string, took time.Duration) []update {
	if n := len(all); n == 0 || all[n-1].name != name {
		all = append(all, update{name: name})
	}
	last := &all[len(all)-1]
	last.took = append(last.took, took)
	return all
}

// saw adds what a client saw to the last update.
func (d *demo) saw(after time.Duration) {
	last := &d.updates[len(d.updates)-1]
	last.seen = append(last.seen, after)
}

// step is one version of the manifests that has come into force.
type step struct {
	renamed time.Time    // just before the file was
	nodes   []programmed // what each node's slipstream made of it
}

// inForce is when the kernels of all nodes were programmed for certain.
func (s step) inForce() (last time.Time) {
	for _, u := range s.nodes {
		if u.read.After(last) {
			last = u.read
		}
	}
	return last
}

// apply copies the next version of a manifest into the watched directory and waits
// until the kernels of all nodes have it.
func (d *demo) apply(ctx context.Context, dir, name string) (s step, err error) {
	before := make([]int, len(d.agents))
	for i, a := range d.agents {
		before[i] = a.log.updates()
	}
	if s.renamed, err = d.manifests.copy(stepsDir + "/" + dir); err != nil {
		return s, err
	}
	for i, a := range d.agents {
		u, err := a.update(ctx, before[i])
		if err != nil {
			return s, err
		}
		s.nodes = append(s.nodes, u)
		d.updates = addTo(d.updates, name, u.took)
	}
	return s, nil
}

// copies shows what apply does, as a command.
func (d *demo) copies(dir string) { d.command("cp %s/steps/%s/* DIR", shownDir, dir) }

// flowed waits until each flow has made n connections that began after t, so that
// all that began before are over. On a slow machine that takes longer than a hold.
func flowed(ctx context.Context, flows []*flow, t time.Time, n int) {
	await(ctx, func() bool {
		return !slices.ContainsFunc(flows, func(f *flow) bool { return len(f.since(t)) < n })
	})
}

// await waits until something is so, which should not take long. It returns false
// if that takes too long.
func await(ctx context.Context, so func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(2 * time.Millisecond):
		}
	}
	return true
}
