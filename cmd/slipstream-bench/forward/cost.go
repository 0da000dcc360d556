// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// reference is a port of the Service's address for which there is no Service:
// datagrams to it meet another fate on the node, and what those to the Service take
// beyond that is a cost.
type reference struct {
	quantity
	port    uint16
	verdict string // of nft's, in the first node's ingress hook
}

// references are those that there can be.
//
// Beyond being dropped on arrival, it takes forwarding: handling the packet, sending
// it, and receiving it in the server's pod, which takes what it took to receive it
// on the node. Beyond being sent to the server's pod as it is, it takes what handling
// it does: the path, without the links. Packets cannot be handed over to the other
// node as they are, nor where the kernel has no such verdict (CONFIG_NFT_FWD_NETDEV).
func (w *world) references() []reference {
	return []reference{
		{packetCost, floodPort.port + 1, "drop"},
		{pathCost, floodPort.port + 2, fmt.Sprintf("fwd to %q", w.server.NodeLink())},
	}[:min(2, 3-len(w.nodes))]
}

// divert applies verdicts of nft's to floods, by port, as they arrive on one of a
// machine's interfaces, before anything else sees them. Other traffic is not touched.
func divert(ctx context.Context, m *lab.Machine, link string, verdicts map[uint16]string) error {
	rules := ""
	for _, port := range slices.Sorted(maps.Keys(verdicts)) {
		rules += fmt.Sprintf("udp dport %d udp length %d %s\n", port, datagram+8, verdicts[port])
	}
	_, err := m.Run(ctx, "nft", fmt.Sprintf(`
table netdev bench {
	chain arriving {
		type filter hook ingress device %q priority -500
		%s
	}
}`, link, rules))
	return err
}

// undivert undoes divert.
func undivert(ctx context.Context, m *lab.Machine) error {
	_, err := m.Run(ctx, "nft", "delete table netdev bench")
	return err
}

// divertAll has floods dropped where they arrive in the server's pod, and those to
// references meet their fate on the first node. It returns the references that this
// kernel can have.
func (w *world) divertAll(ctx context.Context) (all []reference, undo func() error, err error) {
	onNode, inPod := map[uint16]string{}, map[uint16]string{floodPort.port: "drop"}
	node, pod := &w.nodes[0].Machine, &w.server.Machine
	diverted := false
	for _, r := range w.references() {
		with := maps.Clone(onNode)
		with[r.port] = r.verdict
		if diverted {
			if err := undivert(ctx, node); err != nil {
				return nil, nil, err
			}
		}
		if divert(ctx, node, w.client.NodeLink(), with) == nil {
			onNode, all = with, append(all, r)
			inPod[r.port] = "drop"
			diverted = true
			continue
		}
		if diverted {
			if err := divert(ctx, node, w.client.NodeLink(), onNode); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(all) == 0 {
		return nil, nil, errors.New("flood: nft cannot drop packets as they arrive")
	}
	if err := divert(ctx, pod, podLink, inPod); err != nil {
		return nil, nil, errors.Join(err, undivert(ctx, node))
	}
	return all, func() error {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(undivert(ctx, node), undivert(ctx, pod))
	}, nil
}

// costs sends batches to the Service and to references in turns, and returns what a
// datagram to the Service takes beyond those, in nanoseconds: the median of the
// differences of batches that followed each other, as what else the machine does
// slows neighbours alike. It also says how many datagrams went to references.
func (w *world) costs(ctx context.Context, all []reference, d time.Duration) (v values, diverted int, err error) {
	var batches []*batch
	for _, port := range append([]uint16{floodPort.port}, ports(all)...) {
		c, err := w.floodSocket(port)
		if err != nil {
			return nil, 0, err
		}
		defer c.Close()
		if port == floodPort.port {
			if err := converse(c, warmUp); err != nil {
				return nil, 0, err
			}
		}
		batches = append(batches, newBatch(c))
	}
	differences := make([][]float64, len(all))
	err = onOneProcessor(func() error {
		for start := time.Now(); time.Since(start) < d && ctx.Err() == nil; {
			var service time.Duration
			for i, b := range batches {
				n, took, err := b.send()
				if err != nil {
					return err
				}
				if n < batchSize {
					return fmt.Errorf("flood: only %d of %d datagrams could be sent at once", n, batchSize)
				}
				if i == 0 {
					service = took
					continue
				}
				diverted += n
				differences[i-1] = append(differences[i-1], float64(service-took)/batchSize)
			}
		}
		return ctx.Err()
	})
	v = values{}
	for i, r := range all {
		v[r.name] = stats.Median(differences[i])
	}
	return v, diverted, err
}

func ports(all []reference) (ports []uint16) {
	for _, r := range all {
		ports = append(ports, r.port)
	}
	return ports
}
