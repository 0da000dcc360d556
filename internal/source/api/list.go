// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// This file reads the answer to a list request object by object, for servers that do
// not stream lists: most before 1.34, and those with an etcd that does not report the
// progress of its watches. client-go would read and decode the whole answer in memory.

// magic starts an object in Kubernetes' protobuf encoding. A runtime.Unknown follows, which
// contains the object.
const magic = "k8s\x00"

// list lists the kind, delivers each object when it is read, and returns a list without objects.
func (w *watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue == "" {
		w.store.begin()
	}
	read, err := w.readAll(ctx, o)
	if err != nil {
		return nil, err
	}
	if read.GetContinue() == "" {
		w.store.end()
	}
	return &metainternal.List{ListMeta: metav1.ListMeta{ResourceVersion: read.GetResourceVersion(), Continue: read.GetContinue()}}, nil
}

// readAll delivers the objects of a list or of a part of it.
func (w *watcher) readAll(ctx context.Context, o metav1.ListOptions) (metav1.ListInterface, error) {
	w.kind.selectFrom(&o)
	request := w.rest.Get().Resource(w.kind.resource).VersionedParams(&o, metav1.ParameterCodec)
	if w.accept != "" {
		request.SetHeader("Accept", w.accept)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	kind, in := w.kind.served()+"List", bufio.NewReader(body)
	if start, _ := in.Peek(1); string(start) == "{" {
		all := w.kind.list.DeepCopyObject()
		if err := json.NewDecoder(in).Decode(all); err != nil {
			return nil, fmt.Errorf("list of %ss: %w", w.kind.name, err)
		}
		if got := all.GetObjectKind().GroupVersionKind().Kind; got != kind {
			return nil, fmt.Errorf("list of %ss: %q instead of %s", w.kind.name, got, kind)
		}
		return all.(metav1.ListInterface), meta.EachListItemWithAlloc(all, func(o runtime.Object) error {
			w.store.set(o.(source.Object), true)
			return nil
		})
	}
	meta, err := readList(in, kind, func(raw []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		object := w.kind.object("", "")
		err := unmarshal(raw, object)
		if err == nil {
			w.store.set(object, true)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list of %ss: %w", w.kind.name, err)
	}
	return &meta, nil
}

// unmarshal decodes an object in protobuf encoding. It does not retain raw.
func unmarshal(raw []byte, into any) error {
	if s, is := into.(*discoveryv1.EndpointSlice); is {
		return unmarshalSlice(raw, s)
	}
	return into.(interface{ Unmarshal([]byte) error }).Unmarshal(raw)
}

// readList reads a list of a kind and calls item for each object. item must not retain raw.
// The list is field 2 of a runtime.Unknown, of which field 1 is the TypeMeta.
func readList(r io.Reader, kind string, item func(raw []byte) error) (meta metav1.ListMeta, err error) {
	answer := reader{Reader: bufio.NewReader(r)}
	if start, err := answer.Peek(len(magic)); err != nil && err != io.EOF {
		return meta, err
	} else if string(start) != magic {
		return meta, errors.New("the answer is neither JSON nor in Kubernetes' protobuf encoding")
	}
	_, _ = answer.Discard(len(magic))
	complete := false
	err = answer.fields(func(size uint64) error {
		var t runtime.TypeMeta
		if err := answer.message(size, t.Unmarshal); err != nil {
			return err
		}
		if t.Kind != kind {
			return fmt.Errorf("%s instead of %s", t.Kind, kind)
		}
		return nil
	}, func(size uint64) error {
		rest := &io.LimitedReader{R: answer, N: int64(size)}
		list := reader{Reader: bufio.NewReader(rest)}
		err := list.fields(
			func(size uint64) error { return list.message(size, meta.Unmarshal) },
			func(size uint64) error { return list.message(size, item) })
		complete = rest.N == 0
		return err
	})
	if err == nil && !complete {
		err = io.ErrUnexpectedEOF
	}
	return meta, err
}

type reader struct {
	*bufio.Reader
	buffer []byte
}

// fields reads a message until its end. It calls one and two at fields 1 and 2, which are
// messages, with their sizes.
func (r *reader) fields(one, two func(size uint64) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return nil
		}
		number, typ := protowire.DecodeTag(tag)
		var size uint64
		switch {
		case err != nil:
			return err
		case typ == protowire.VarintType:
			_, err = binary.ReadUvarint(r)
		case typ == protowire.Fixed32Type:
			size = 4
		case typ == protowire.Fixed64Type:
			size = 8
		case typ == protowire.BytesType:
			size, err = binary.ReadUvarint(r)
		default:
			err = fmt.Errorf("wire type %d", typ)
		}
		switch {
		case err != nil:
		case typ == protowire.BytesType && number == 1:
			err = one(size)
		case typ == protowire.BytesType && number == 2:
			err = two(size)
		default:
			_, err = io.CopyN(io.Discard, r, int64(size))
		}
		if err == io.EOF { // within the field
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
}

// maxMessage is the maximum size of an object in bytes. etcd's limit is 1.5 MB by default.
const maxMessage = 64 << 20

func (r *reader) message(size uint64, read func([]byte) error) error {
	if size > maxMessage {
		return fmt.Errorf("an object of %d bytes", size)
	}
	if uint64(cap(r.buffer)) < size {
		r.buffer = make([]byte, size, size+size/2)
	}
	if _, err := io.ReadFull(r, r.buffer[:size]); err != nil {
		return err
	}
	return read(r.buffer[:size])
}
