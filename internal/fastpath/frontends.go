// SPDX-License-Identifier: Apache-2.0

package fastpath

import "github.com/slipstream-proxy/slipstream/internal/desired"

// frontends are the Services' frontends that the kernel's sets have.
type frontends struct {
	keys  []desired.FrontendKey // in no order, so that one after the other can be looked at
	known map[desired.FrontendKey]known
}

type known struct {
	at      int // in keys
	service desired.ServicePort
}

func (f *frontends) reset(n int) {
	f.keys = make([]desired.FrontendKey, 0, n)
	f.known = make(map[desired.FrontendKey]known, n)
}

func (f *frontends) add(k desired.FrontendKey, s desired.ServicePort) {
	if old, had := f.known[k]; had {
		f.known[k] = known{old.at, s}
		return
	}
	f.known[k] = known{len(f.keys), s}
	f.keys = append(f.keys, k)
}

func (f *frontends) remove(k desired.FrontendKey) {
	gone, had := f.known[k]
	if !had {
		return
	}
	last := f.keys[len(f.keys)-1]
	f.keys[gone.at] = last
	f.keys = f.keys[:len(f.keys)-1]
	f.known[last] = known{gone.at, f.known[last].service}
	delete(f.known, k)
}

// write takes a change into the batch and into f, at a cost that follows the
// change. Frontends of protocols that are not offloaded are passed over. An element
// has its Service as a comment; one whose Service is another now is made anew.
func (c *Controller) write(change *desired.Change) {
	for _, del := range []bool{true, false} {
		for i := range change.Frontends {
			f := &change.Frontends[i]
			k := f.Key()
			if !offloadable(k.Protocol) || f.Old != nil && f.New != nil && f.Old.Service == f.New.Service {
				continue
			}
			set := familyOf(k.Addr()).frontends
			c.key = frontendKey(c.key[:0], k)
			switch {
			case del && f.Old != nil:
				c.batch.DeleteElement(table, set, c.key)
				c.frontends.remove(k)
			case !del && f.New != nil:
				c.batch.AddElement(table, set, c.key, nil, f.New.Service.String())
				c.frontends.add(k, f.New.Service)
			}
		}
	}
}
