// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// This file reads the answer to a list request object by object, for servers that do
// not stream lists: most before 1.34, and those with an etcd that does not report the
// progress of its watches. client-go would read and decode the whole answer in memory.

// magic starts an object in Kubernetes' protobuf encoding. A runtime.Unknown follows, which
// contains the object.
const magic = "k8s\x00"

// Numbers of fields: of runtime.Unknown, and of every list.
const (
	unknownType = 1 // runtime.TypeMeta
	unknownRaw  = 2

	listMeta  = 1 // metav1.ListMeta
	listItems = 2
)

// errNotProtobuf says that a server answers in another encoding.
var errNotProtobuf = errors.New("the answer is not in Kubernetes' protobuf encoding")

// list lists the kind, delivers each object when it is read, and returns their names.
func (w *watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if !w.protobuf {
		return w.client.ListWithContext(ctx, o)
	}
	selected := o
	w.kind.selectFrom(&selected)
	body, err := w.rest.Get().Resource(w.kind.resource).VersionedParams(&selected, metav1.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf).Stream(ctx)
	if apierrors.IsNotAcceptable(err) {
		w.protobuf = false
		return w.client.ListWithContext(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	out := &metainternal.List{}
	out.ListMeta, err = readList(body, w.kind.name+"List", func(raw []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		object := w.kind.object("", "")
		if err := object.(interface{ Unmarshal([]byte) error }).Unmarshal(raw); err != nil {
			return err
		}
		name, err := w.store.set(object, true)
		out.Items = append(out.Items, name)
		return err
	})
	if errors.Is(err, errNotProtobuf) {
		return w.client.ListWithContext(ctx, o)
	}
	if err != nil {
		return nil, fmt.Errorf("list of %ss: %w", w.kind.name, err)
	}
	return out, nil
}

// readList reads a list of a kind and calls item for each object. item must not retain raw.
func readList(r io.Reader, kind string, item func(raw []byte) error) (meta metav1.ListMeta, err error) {
	answer := reader{Reader: bufio.NewReader(r)}
	if start, err := answer.Peek(len(magic)); err != nil || string(start) != magic {
		return meta, errors.Join(errNotProtobuf, err)
	}
	_, _ = answer.Discard(len(magic))
	for {
		switch field, err := answer.field(unknownType, unknownRaw); {
		case err != nil:
			return meta, noEOF(err)
		case field == unknownType:
			var t runtime.TypeMeta
			if err := answer.message(t.Unmarshal); err != nil {
				return meta, err
			}
			if t.Kind != kind {
				return meta, fmt.Errorf("%s instead of %s", t.Kind, kind)
			}
			continue
		}
		break
	}
	size, err := binary.ReadUvarint(answer)
	if err != nil {
		return meta, noEOF(err)
	}
	rest := &io.LimitedReader{R: answer, N: int64(size)}
	list := reader{Reader: bufio.NewReader(rest)}
	for {
		switch field, err := list.field(listMeta, listItems); {
		case err == io.EOF && rest.N == 0:
			return meta, nil
		case err != nil:
			return meta, noEOF(err)
		case field == listMeta:
			err = list.message(meta.Unmarshal)
			if err != nil {
				return meta, err
			}
		default:
			if err := list.message(item); err != nil {
				return meta, err
			}
		}
	}
}

// noEOF converts an end that is not expected.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// reader reads protobuf messages.
type reader struct {
	*bufio.Reader
	buffer []byte
}

// field returns the number of the next field that is one of two messages, and stops before
// its length. It returns io.EOF at the end.
func (r *reader) field(a, b protowire.Number) (protowire.Number, error) {
	for {
		tag, err := binary.ReadUvarint(r)
		if err != nil {
			return 0, err
		}
		number, typ := protowire.DecodeTag(tag)
		if typ == protowire.BytesType && (number == a || number == b) {
			return number, nil
		}
		if err := r.skip(typ); err != nil {
			return 0, noEOF(err)
		}
	}
}

// skip reads the value of a field.
func (r *reader) skip(typ protowire.Type) error {
	var size uint64
	var err error
	switch typ {
	case protowire.VarintType:
		_, err = binary.ReadUvarint(r)
	case protowire.Fixed32Type:
		size = 4
	case protowire.Fixed64Type:
		size = 8
	case protowire.BytesType:
		size, err = binary.ReadUvarint(r)
	default:
		err = fmt.Errorf("wire type %d", typ)
	}
	if err == nil {
		_, err = io.CopyN(io.Discard, r, int64(size))
	}
	return err
}

// maxMessage is the maximum size of an object in bytes. etcd's limit is 1.5 MB by default.
const maxMessage = 64 << 20

// message calls read with the value of a field that is a message.
func (r *reader) message(read func([]byte) error) error {
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return noEOF(err)
	}
	if size > maxMessage {
		return fmt.Errorf("an object of %d bytes", size)
	}
	if uint64(cap(r.buffer)) < size {
		r.buffer = make([]byte, size, size+size/2)
	}
	if _, err := io.ReadFull(r, r.buffer[:size]); err != nil {
		return noEOF(err)
	}
	return read(r.buffer[:size])
}
