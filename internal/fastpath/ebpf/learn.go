// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// listen completes flows that wait until ctx ends.
func (e *Engine) listen(ctx context.Context) {
	const most = 64                                                  // the answers of conntrack have to fit into a socket's queue
	defer context.AfterFunc(ctx, func() { _ = e.waiting.Flush() })() // ends the wait for a record
	var keys []programTuple
	for record := (ringbuf.Record{}); ctx.Err() == nil; {
		err := e.waiting.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Fast path: no TCP connections will be offloaded")
			return
		}
		if len(record.RawSample) >= int(unsafe.Sizeof(programTuple{})) {
			keys = append(keys, *(*programTuple)(unsafe.Pointer(unsafe.SliceData(record.RawSample))))
		}
		if record.Remaining > 0 && len(keys) < most {
			continue
		}
		if err := e.complete(ctx, keys); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Fast path: connections stay on the slow path", "reason", err.Error())
		}
		keys = keys[:0]
	}
}

// complete has conntrack accept all sequence numbers of connections, and then the program forward them. It does so again
// afterwards, as packets that came before have set the highest acknowledgement.
func (e *Engine) complete(ctx context.Context, keys []programTuple) error {
	keys = slices.DeleteFunc(keys, func(key programTuple) bool {
		var f programFlow
		return e.objects.Flows.Lookup(&key, &f) != nil || f.Waits == 0
	})
	keys, err := e.beLiberal(ctx, keys)
	for i := range keys {
		var f programFlow
		var other programTuple
		if e.objects.Flows.Lookup(&keys[i], &f) == nil {
			other.set(reversed(f.To.get()))
			err = errors.Join(err, e.release(&other), e.release(&keys[i]))
		}
	}
	_, again := e.beLiberal(ctx, keys)
	return errors.Join(err, again)
}

// release ends the wait of a flow. Until then nobody else writes it.
func (e *Engine) release(key *programTuple) error {
	var f programFlow
	if err := e.objects.Flows.Lookup(key, &f); err != nil {
		return err
	}
	f.Waits = 0
	f.seal()
	return e.objects.Flows.Update(key, &f, ebpf.UpdateExist)
}

// Flags of a direction (IP_CT_TCP_FLAG_*).
const (
	flagLiberal = 0x08
	flagMaxAck  = 0x20
)

// beLiberal has conntrack accept all sequence numbers of TCP connections, as it will not see all
// packets. It also forgets the highest acknowledgement, by which it would take a RST for invalid. It returns
// the connections for which it has.
func (e *Engine) beLiberal(ctx context.Context, keys []programTuple) (done []programTuple, err error) {
	flags := []byte{flagLiberal, flagLiberal | flagMaxAck}
	requests := make([]netlink.Message, len(keys))
	for i := range keys {
		requests[i], err = ctnetlink.UpdateOf(keys[i].get(), func(a *netlink.AttributeEncoder) {
			a.Nested(nl.CTA_PROTOINFO, func(a *netlink.AttributeEncoder) error {
				a.Nested(nl.CTA_PROTOINFO_TCP, func(a *netlink.AttributeEncoder) error {
					a.Bytes(nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, flags)
					a.Bytes(nl.CTA_PROTOINFO_TCP_FLAGS_REPLY, flags)
					return nil
				})
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	}
	var refused []error
	i := 0
	err = e.ct.Execute(ctx, requests, func(err error) {
		if err == nil {
			done = append(done, keys[i])
		} else if !errors.Is(err, unix.ENOENT) { // it has ended
			refused = append(refused, err)
		}
		i++
	})
	return done, errors.Join(append(refused, err)...)
}
