// SPDX-License-Identifier: Apache-2.0

// Command bench-read reads the objects that a proxy needs from an API server, and does nothing with them. It prints
// "complete" when it has all.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// streams are the requests of a proxy, but for its Node and for ServiceCIDRs.
var streams = []string{
	"/api/v1/services?labelSelector=!service.kubernetes.io/service-proxy-name",
	"/apis/discovery.k8s.io/v1/endpointslices?labelSelector=!service.kubernetes.io/headless",
}

const streaming = "&watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"

func main() {
	if err := read(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	complete := make(chan bool)
	go func() {
		for range streams {
			<-complete
		}
		fmt.Println("complete")
	}()
	all, ctx := errgroup.WithContext(ctx)
	for _, path := range streams {
		all.Go(func() error { return follow(ctx, client, config.Host+path+streaming, complete) })
	}
	return all.Wait()
}

// follow reads a stream until it ends, and says when its first part is complete (KEP-3157).
func follow(ctx context.Context, client *http.Client, url string, complete chan<- bool) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.ReplaceAll(url, "!", "%21"), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	var event []byte
	for in := bufio.NewReaderSize(response.Body, 64<<10); ; {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return err
		}
		event = append(event[:0], make([]byte, binary.BigEndian.Uint32(size[:]))...)
		if _, err := io.ReadFull(in, event); err != nil {
			return err
		}
		if bytes.HasPrefix(event, []byte("\n\bBOOKMARK")) && bytes.Contains(event, []byte("initial-events-end")) {
			complete <- true
		}
	}
}
