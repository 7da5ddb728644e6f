/** An information object, as `ObjectSaid` of the gateway's document. */
export interface InfoObject {
  id: string;
  type: string;
  version: string;
  /** Null if they are not UTF-8: then see `metadata_base64`. */
  metadata: string | null;
  metadata_base64: string | null;
  /** Null above 4 MiB. */
  payload_base64: string | null;
  payload_length: number;
  is_selection: boolean;
  registration: string;
  sequence: number;
  published: string;
  position: number;
  place: string;
}

/** Objects that did not arrive. A count of 0 means that the number is not known. */
export interface Loss {
  cause: string;
  count: number;
  detail: string;
}

export type Event =
  | { kind: "open"; data: { subscription: string } }
  | { kind: "object"; data: InfoObject }
  | { kind: "lost"; data: Loss }
  /** The connection was cut; the next attempt is in `seconds`. */
  | { kind: "again"; data: { seconds: number; reason: string } };

export interface Page {
  objects: InfoObject[];
  more: boolean;
  partial: string[];
  left_out: string[];
}

export interface SubscribeOptions {
  /** Seconds without a gateway after which the error is thrown; 600 without. */
  patience?: number;
  /** now, all, last, 2h, a time or a place; for delegates with an archive. */
  start?: string;
}

/** Publish one object, and wait until the delegate has it. */
export function publish(
  base: string,
  type: string,
  version: string,
  metadata: string | Uint8Array,
  payload?: string | Uint8Array,
  persist?: boolean,
): Promise<{ ids: string[] }>;

/** The events of a subscription, without end. It reconnects, and tells what is lost. */
export function subscribe(
  base: string,
  type: string,
  version: string,
  predicate?: string,
  options?: SubscribeOptions,
): AsyncGenerator<Event, void, undefined>;

/** Parameters of queryObjects in the gateway's document, such as limit, after, order and since. */
export type QueryOptions = Record<string, string | number | boolean>;

/** A page of the archived objects that match; `more` says whether there are others. */
export function query(
  base: string,
  type: string,
  version: string,
  predicate?: string,
  options?: QueryOptions,
): Promise<Page>;

/** All archived objects that match, page by page. Throws where an archive has not told all. */
export function queryAll(
  base: string,
  type: string,
  version: string,
  predicate?: string,
  options?: QueryOptions,
): AsyncGenerator<InfoObject, void, undefined>;
