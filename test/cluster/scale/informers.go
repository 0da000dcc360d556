// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// asInformers is the argument by which this program runs as a client that has informers of
// Services and EndpointSlices, and does nothing else: what a proxy that is written in Go cannot
// undercut. It prints a line with the time, in nanoseconds, when it has all objects, and for each
// update of an EndpointSlice afterwards.
const asInformers = "informers"

func runInformers(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	all := informers.NewSharedInformerFactory(client, 0)
	all.Core().V1().Services().Informer()
	slices := all.Discovery().V1().EndpointSlices().Informer()
	note := func() { fmt.Println(time.Now().UnixNano()) }
	if _, err := slices.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, _ any) { note() }}); err != nil {
		return err
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	note()
	<-ctx.Done()
	all.Shutdown()
	return nil
}

// informers measures such a client, in a process of its own.
func (m *measurement) informers(ctx context.Context) (err error) {
	const changes = 20
	access, err := m.site.Plane.NewAccess(ctx, m.dir, fmt.Sprintf("informers-%s-%s", m.subject, m.node.Name()))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := m.node.StartProgram(m.dir, "informers-"+m.node.Name(), self, asInformers, access.Kubeconfig)
	if err != nil {
		return err
	}
	defer func() {
		if closed := p.Close(); err == nil {
			err = closed
		}
	}()
	times := func(n int) (all []string, err error) {
		err = p.Await(ctx, func(context.Context) error {
			if all = strings.Fields(p.Log()); len(all) < n {
				return fmt.Errorf("%d events, want %d", len(all), n)
			}
			return nil
		})
		return all, err
	}
	if _, err := times(1); err != nil {
		return err
	}
	before, err := m.usedWhenCalm(ctx, p.PID())
	if err != nil {
		return err
	}
	m.samples.Add(informersCPU, float64(before))
	memory, err := bench.Memory(p.PID())
	if err != nil {
		return err
	}
	m.samples.Add(informersPeak, float64(memory.VmHWM))
	var replied []time.Time
	for n := range changes {
		if err := bench.Sleep(ctx, pause/2); err != nil {
			return err
		}
		m.replaceFirst(m.Single[n%len(m.Single)])
		if err := m.writeFirst(ctx, m.Single[n%len(m.Single)]); err != nil {
			return err
		}
		replied = append(replied, time.Now())
	}
	all, err := times(1 + changes)
	if err != nil {
		return err
	}
	after, err := m.usedWhenCalm(ctx, p.PID())
	if err != nil {
		return err
	}
	m.samples.Add(informersChange, float64(after-before)/changes)
	for n, at := range replied {
		got, err := strconv.ParseInt(all[1+n], 10, 64)
		if err != nil {
			return err
		}
		m.samples.Add(delivered, max(float64(got-at.UnixNano()), 0))
	}
	return nil
}

// usedWhenCalm returns the processor time of a process when it does next to nothing.
func (m *measurement) usedWhenCalm(ctx context.Context, pid int) (time.Duration, error) {
	if err := m.calm(ctx, pid); err != nil {
		return 0, err
	}
	return bench.Used(pid)
}
