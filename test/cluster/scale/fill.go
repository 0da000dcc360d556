// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/client-go/kubernetes"
)

// writers is how many requests to the API server are under way at a time.
const writers = 24

// filled is what filling the API server took.
type filled struct {
	Services  int     `json:"services"`
	Slices    int     `json:"slices"`
	Endpoints int     `json:"endpoints"`
	Seconds   float64 `json:"seconds"`
}

// fill writes the Services from number first to the one before number end, and their
// EndpointSlices.
func fill(ctx context.Context, client k8s.Interface, c *content, first, end int) (f filled, err error) {
	begin := time.Now()
	var slices, endpoints atomic.Int64
	err = each(end-first, func(k int) error {
		i := first + k
		if _, err := client.CoreV1().Services(namespace).Create(ctx, c.service(i), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create Service %s: %w", name(i), err)
		}
		for _, s := range c.slices(i) {
			if _, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("create EndpointSlice %s: %w", s.Name, err)
			}
			slices.Add(1)
			endpoints.Add(int64(len(s.Endpoints)))
		}
		return nil
	})
	return filled{end - first, int(slices.Load()), int(endpoints.Load()), time.Since(begin).Seconds()}, err
}

// write writes the slice that has endpoint number j of a Service, and returns after the
// API server's reply.
func write(ctx context.Context, client k8s.Interface, c *content, i, j int) error {
	s := c.slice(i, j/sliceSize*sliceSize)
	// Without a version, whatever is stored is replaced.
	if _, err := client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", s.Name, err)
	}
	return nil
}

// each calls do for 0 to n-1, several at a time, until one fails.
func each(n int, do func(i int) error) error {
	var next atomic.Int64
	var once sync.Once
	var failed error
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				if err := do(i); err != nil {
					once.Do(func() { failed = err })
					next.Store(int64(n)) // no more of them
				}
			}
		})
	}
	all.Wait()
	return failed
}
