"""A PostgreSQL table with pgvector as the retriever: the nearest rows to the question's vector."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from denominator import masking
from denominator.errors import ConfigError, MissingExtraError, StageError
from denominator.retrievers.bench import Bench
from denominator.retrievers.calling import Caller, Calls, Failed
from denominator.retrievers.dense import Vectors
from denominator.retrievers.own import ChunkFinder, Found
from denominator.retrievers.table import Queries, Ranked

Distance = Literal["cosine", "inner_product", "l2", "l1"]
OPERATORS: Mapping[str, str] = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->", "l1": "<+>"}
EXTRA = "pgvector"


@dataclass(frozen=True, slots=True, kw_only=True)
class PgVector(Calls):
    """Asks `SELECT … ORDER BY embedding <=> question LIMIT depth` for each question; with `chunker: none` or chunks
    of the same ids.

    `dsn`: `postgresql://user:password@host/database`, best from the environment; null: what libpq finds there
    (`PGHOST`, `PGUSER`, …). `table`: a name, perhaps with its schema (`public.chunks`). `id`, `embedding`: columns.
    `document`, and `start` with `end`, or `text`: columns that say which chunk is meant where the id is none of the
    corpus. `where`: columns that must have these values. `vector`: the part that makes a question's vector, an
    embedder of this package or one with `embed(bench, queries)`; it must be the model of the column.

    Score: 1 − distance for `cosine`, the inner product, else the negative distance. `exact`: scans the table and breaks
    ties by id; otherwise the database uses its index as it would for anybody, with `settings` of the session such as
    `{ivfflat.probes: 10}`. `hnsw.ef_search` is raised to the depth unless it is among them: an HNSW index gives no more
    rows than that. Questions that got fewer rows than they could have are counted (`embedder_short_rankings`). A row
    without a distance (no embedding, or one of length 0 under `cosine`) is no hit. The session only reads.

    A table or column that is not there fails the cell, everything else fails its question alone. Rows may change, so
    results are kept only under a declared `version`.
    """

    table: str
    vector: Any
    dsn: str | None = field(default=None, repr=False)
    id: str = "id"
    embedding: str = "embedding"
    document: str | None = None
    start: str | None = None
    end: str | None = None
    text: str | None = None
    where: Mapping[str, str | int | bool] = field(default_factory=dict)
    distance: Distance = "cosine"
    exact: bool = False
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    version: str | None = None
    code: ClassVar[int] = 1
    what: ClassVar[str] = "embedder pgvector"
    not_in_key: ClassVar[tuple[str, ...]] = (*Calls.not_in_key, "dsn")

    def __post_init__(self) -> None:
        Calls.__post_init__(self)
        if (self.start is None) != (self.end is None):
            raise ConfigError(f"{self.what}: start and end are columns together, or neither")
        if self.distance not in OPERATORS:
            raise ConfigError(f"{self.what}: distance must be one of {', '.join(OPERATORS)}, found {self.distance!r}")
        if not self.table or any(not part for part in self.table.split(".")):
            raise ConfigError(f"{self.what}: table must be a name or schema.name, found {self.table!r}")
        if not (callable(getattr(self.vector, "embed", None)) or callable(getattr(self.vector, "questions", None))):
            raise ConfigError(
                f"{self.what}: vector must be a part that embeds questions, found {type(self.vector).__name__}"
            )
        if self.dsn is not None and "://" not in self.dsn and "password" in self.dsn:
            # Only of an address can we tell everywhere which part is secret.
            raise ConfigError(f"{self.what}: write a dsn with a password as postgresql://user:password@host/database")

    @property
    def cacheable(self) -> bool:
        return self.version is not None

    def identity(self) -> list[str]:
        """Where the table is, without user and password."""
        known = _driver().conninfo.conninfo_to_dict(self.dsn or "")
        return [str(known.get(name, "")) for name in ("host", "port", "dbname")]

    def open(self, bench: Bench) -> PgIndex:
        return PgIndex(self, bench)


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError:
        raise MissingExtraError("embedder pgvector", EXTRA) from None
    return psycopg


class PgIndex(ChunkFinder):
    """The table with the corpus that its ids are looked up in, and connections that nobody uses just now."""

    def __init__(self, part: PgVector, bench: Bench) -> None:
        super().__init__(bench.table)
        self.part, self.order = part, bench.order
        self.caller = Caller(part)
        self.facts: Mapping[str, float] = {}
        self.query, self.count = self._queries()
        self.of_text = self.texts(bench.table) if part.text is not None else {}
        masking.remember(part.dsn)
        self.settings: dict[str, Any] = {"default_transaction_read_only": "on"}
        if part.exact:
            self.settings["enable_indexscan"] = "off"
        else:
            self.settings["hnsw.ef_search"] = min(1000, max(40, bench.depth))
        if part.timeout is not None:
            self.settings["statement_timeout"] = max(1, round(part.timeout * 1000))
        self.settings |= part.settings
        self._idle: list[Any] = []
        weakref.finalize(self, _close, self._idle)

    def _queries(self) -> tuple[Any, Any]:
        """The nearest rows, and how many rows there are."""
        part, sql = self.part, _driver().sql
        far = sql.SQL("{} {} %(vector)s::vector").format(
            sql.Identifier(part.embedding), sql.SQL(OPERATORS[part.distance])
        )
        columns = {"id": part.id, "document": part.document, "text": part.text}
        wanted = [sql.SQL("{}::text").format(sql.Identifier(c)) if c else sql.SQL("NULL") for c in columns.values()]
        wanted += [sql.Identifier(c) if c else sql.SQL("NULL") for c in (part.start, part.end)]
        conditions = [
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in part.where.items()
        ]
        table = sql.Identifier(*part.table.split("."))
        where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
        ties = sql.SQL(", {}").format(sql.Identifier(part.id)) if part.exact else sql.SQL("")
        rows = sql.SQL("SELECT {}, {} AS far FROM {}{} ORDER BY far{} LIMIT %(depth)s").format(
            sql.SQL(", ").join(wanted), far, table, where, ties
        )
        return rows, sql.SQL("SELECT count({}) FROM {}{}").format(sql.Identifier(part.embedding), table, where)

    # ---------------------------------------------------------------- asking

    def search(self, bench: Bench, queries: Queries) -> Ranked:
        vectors, errors = self._vectors(bench, queries)
        found = Found(self, len(queries), bench.depth)
        found.errors |= errors
        asked = [i for i, text in enumerate(queries.texts) if text.strip() and i not in errors and vectors[i].any()]

        def call(j: int) -> list[dict[str, Any]]:
            return self._rows(vectors[asked[j]], bench.depth)

        short = 0
        for j, rows in self.caller.each(len(asked), call):
            if isinstance(rows, Failed):
                found.errors[asked[j]] = f"{self.part.what}: {rows}"
            else:
                found.put(asked[j], rows)
                short += len(rows) < bench.depth
        ranked = found.ranked(self.order, has_confidence=True)
        if short and not self.part.exact and queries.kept:
            return replace(ranked, facts={"embedder_short_rankings": float(short) if self._more(bench.depth) else 0.0})
        return ranked

    def _more(self, depth: int) -> bool:
        """Whether the table has as many rows as were asked for."""
        with contextlib.suppress(DatabaseError), self._session() as cursor:
            return int(cursor.execute(self.count).fetchone()[0]) >= depth
        return False

    def _vectors(self, bench: Bench, queries: Queries) -> tuple[Vectors, Mapping[int, str]]:
        part = self.part.vector
        if hasattr(part, "questions"):  # a server: some of them may fail
            made = part.questions(bench, queries, None)
            return made.vectors, made.errors
        return part.embed(bench, queries), {}

    def _rows(self, vector: Vectors, depth: int) -> list[dict[str, Any]]:
        text = "[" + ",".join(map(repr, vector.tolist())) + "]"
        with self._session() as cursor:
            rows = cursor.execute(self.query, {"vector": text, "depth": depth}).fetchall()
        return [self._item(row) for row in rows if row[-1] is not None and row[-1] == row[-1]]

    def _item(self, row: tuple[Any, ...]) -> dict[str, Any]:
        name, document, text, start, end, far = row
        if name not in self.of_id and document is not None:
            name = document if start is not None else self.of_text.get((document, (text or "").strip()), document)
        score = 1.0 - far if self.part.distance == "cosine" else -float(far)
        return {"id": name, "score": score, "start": start, "end": end}

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        """A cursor of a connection that no other thread uses. Raises DatabaseError, StageError for a wrong setting."""
        pg = _driver()
        connection = None
        try:
            connection = self._idle.pop() if self._idle else self._connected(pg)
            with connection.cursor() as cursor:
                yield cursor
        except pg.Error as error:
            said = masking.mask(" ".join(str(error).split()))
            if connection is not None and isinstance(error, pg.OperationalError):
                connection.close()  # broken, or out of time: the next attempt begins anew
            if isinstance(error, pg.ProgrammingError):  # the same for every question: a name, a right
                hint = "; in the database: CREATE EXTENSION vector" if 'type "vector"' in said else ""
                raise StageError(f"{self.part.what}: {said}{hint}") from None
            raise DatabaseError(said) from None
        finally:
            if connection is not None and not connection.closed:
                self._idle.append(connection)

    def _connected(self, pg: Any) -> Any:
        wait = {} if self.part.timeout is None else {"connect_timeout": max(2, round(self.part.timeout))}
        made = pg.connect(
            self.part.dsn or "", autocommit=True, prepare_threshold=None, application_name="denominator", **wait
        )
        try:
            made.execute("SELECT '[1]'::vector")  # loads the extension; its settings are unknown before
            for name, value in self.settings.items():
                made.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
        except BaseException:
            made.close()
            raise
        return made


def _close(connections: list[Any]) -> None:
    while connections:
        with contextlib.suppress(Exception):
            connections.pop().close()


class DatabaseError(Exception):
    """What the database said, in one line without secrets."""
